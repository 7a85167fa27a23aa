/* Untrusted input: specs of every kind, special files, odd names, and bytes
 * changed at random. */
// flavours: test: release; check: asan
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "check.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- spec.json ---- */

/* Opens a dataset with this spec and empty Bags. Returns its names and types,
 * if it is accepted, as "name=type;name=type;". */
static bags_code try_spec(const void *spec, size_t size, char *out) {
    memory_disk m;
    bags_reader_options options;
    size_t count = 0, used = 0;
    bags_code code = BAGS_OK;
    memory_disk_start(&m);
    memory_disk_save(&m, "x/spec.json", spec, size);
    memory_disk_save(&m, "x/refs.bag", "\0\0\0\0\0\0\0\0", 8);
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    options.env.io = &m.io;
    poison();
    bags_reader *reader = bags_reader_open("x", &options, &said);
    if (!reader)
        code = said.code;
    const bags_field *fields = reader ? bags_reader_fields(reader, &count) : NULL;
    if (out)
        *out = 0;
    for (size_t i = 0; i < count && out; i++)
        used += (size_t)sprintf(out + used, "%s=%s;", fields[i].name, fields[i].type);
    bags_reader_close(reader);
    memory_disk_free(&m);
    return code;
}

static void specs_with_any_json_formatting_are_read(void **state) {
    static const struct {
        const char *spec, *fields;
    } rows[] = {
        {"{}", ""},
        {" \t\r\n{ \t\r\n} \t\r\n", ""},
        {"{\"a\": \"bytes\", \"b\": \"utf8[]\"}", "a=bytes;b=utf8[];"},
        {"{\"a\":\"bytes\",\"b\":\"utf8[]\"}", "a=bytes;b=utf8[];"},
        {"\n{\n\t\"a\"\r:\n\"bytes\" ,\t\"b\" : \"utf8[]\"\n}\n", "a=bytes;b=utf8[];"},
        {"{\"\\u0061\": \"\\u0062yt\\u0065s\"}", "a=bytes;"},
        {"{\"\\u00e9\": \"x\"}", "\xc3\xa9=x;"},
        {"{\"\\u00E9\": \"x\"}", "\xc3\xa9=x;"},
        {"{\"\xc3\xa9\": \"x\"}", "\xc3\xa9=x;"},
        {"{\"\\ud83d\\ude00\": \"x\"}", "\xf0\x9f\x98\x80=x;"},
        {"{\"\xf0\x9f\x98\x80\": \"x\"}", "\xf0\x9f\x98\x80=x;"},
        {"{\"\\uffff\": \"x\", \"\\ud800\\udc00\": \"y\"}",
            "\xef\xbf\xbf=x;\xf0\x90\x80\x80=y;"},
        {"{\"\\t\\n\\r\\b\\f\\\"\\\\\": \"x\"}", "\t\n\r\b\f\"\\=x;"},
        {"{\"\": \"x\"}", "=x;"},
        {"{\".\": \"x\", \"..\": \"y\", \".hidden\": \"z\"}", ".=x;..=y;.hidden=z;"},
        {"{\"a\": \"q()\", \"aa\": \"any-thing_8(1,.,-)[]\"}",
            "a=q();aa=any-thing_8(1,.,-)[];"},
        {"{\"10\": \"x\", \"9\": \"x\", \"B\": \"x\", \"_\": \"x\"}",
            "10=x;9=x;B=x;_=x;"},
        {"{\"x y\": \"x\", \"x:y\": \"x\"}", "x y=x;x:y=x;"},
    };
    char fields[1024];
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_code code = try_spec(rows[i].spec, strlen(rows[i].spec), fields);
        if (ON_WINDOWS && strpbrk(rows[i].fields, "\\:")) {
            assert_int_equal(code, BAGS_ERROR_FIELD);
            continue; /* there they are directories, and streams of files */
        }
        if (code)
            fail_msg("%s: %s", rows[i].spec, said.message);
        assert_string_equal(fields, rows[i].fields);
    }
}

static void invalid_specs_are_refused(void **state) {
    static const struct {
        const char *spec;
        size_t size; /* 0: up to the NUL */
    } rows[] = {
        {" ", 1},
        {"{", 0},
        {"}", 0},
        {"[]", 0},
        {"null", 0},
        {"1", 0},
        {"\"a\"", 0},
        {"{\"a\"}", 0},
        {"{\"a\":}", 0},
        {"{\"a\" \"x\"}", 0},
        {"{\"a\":1}", 0},
        {"{\"a\":null}", 0},
        {"{\"a\":true}", 0},
        {"{\"a\":[]}", 0},
        {"{\"a\":[\"x\"]}", 0},
        {"{\"a\":{}}", 0},
        {"{\"a\":-1.5e3}", 0},
        {"{\"a\":\"x\",}", 0},
        {"{,}", 0},
        {"{,\"a\":\"x\"}", 0},
        {"{\"a\":\"x\",,\"b\":\"x\"}", 0},
        {"{\"a\":\"x\" \"b\":\"x\"}", 0},
        {"{a:\"x\"}", 0},
        {"{'a':'x'}", 0},
        {"{1:\"x\"}", 0},
        {"{\"a\":x}", 0},
        {"{\"a\":\"x\"}}", 0},
        {"{\"a\":\"x\"}{}", 0},
        {"{}x", 0},
        {"{} {}", 0},
        {"{}\0", 3},
        {"\0{}", 3},
        {"{\0}", 3},
        {"{}//c", 0},
        {"/**/{}", 0},
        {"{\"a\":\"x\"", 0},
        {"{\"a\":\"x", 0},
        {"{\"a", 0},
        {"{\"a\\", 0},
        {"{\"a\\u00", 0},
        {"{\"a\n\":\"x\"}", 0},
        {"{\"a\x01\":\"x\"}", 0},
        {"{\"a\":\"x\n\"}", 0},
        {"{\"a\x00\":\"x\"}", 10},
        {"{\"\\x41\":\"x\"}", 0},
        {"{\"\\u12\":\"x\"}", 0},
        {"{\"\\u12g4\":\"x\"}", 0},
        {"{\"\\u 123\":\"x\"}", 0},
        {"{\"\\u+123\":\"x\"}", 0},
        {"{\"\\U00e9\":\"x\"}", 0},
        {"{\"\\a\":\"x\"}", 0},
        {"{\"\\'\":\"x\"}", 0},
        {"{\"\\0\":\"x\"}", 0},
        {"{\"\\ud800\":\"x\"}", 0},
        {"{\"\\udc00\":\"x\"}", 0},
        {"{\"\\ud800x\":\"x\"}", 0},
        {"{\"\\ud800\\n\":\"x\"}", 0},
        {"{\"\\ud800\\u0041\":\"x\"}", 0},
        {"{\"\\ud800\\ud800\":\"x\"}", 0},
        {"{\"\\ude00\\ud83d\":\"x\"}", 0},
        {"{\"a\":\"\\ud800\"}", 0},
        {"{\"\xff\":\"x\"}", 0},
        {"{\"\xc3\":\"x\"}", 0},
        {"{\"\xc0\xaf\":\"x\"}", 0},
        {"{\"\xed\xa0\x80\":\"x\"}", 0},
        {"{\"\xf5\x80\x80\x80\":\"x\"}", 0},
        {"{\"a\":\"\xff\"}", 0},
        {"\v{}", 0},
        {"\f{}", 0},
        {"\xc2\xa0{}", 0},
        {"{}\xe2\x80\xa8", 0},
        {"\xff\xfe{\0}\0", 6},
        {"\xfe\xff\0{\0}", 6},
        {"{\0}\0", 4},
        {"\0{\0}", 4},
        {"{\0\0\0}\0\0\0", 8},
        /* their order gives refs their meaning */
        {"{\"b\":\"x\",\"a\":\"x\"}", 0},
        {"{\"a\":\"x\",\"B\":\"x\"}", 0},
        {"{\"9\":\"x\",\"10\":\"x\"}", 0},
        {"{\"aa\":\"x\",\"a\":\"x\"}", 0},
        {"{\"\\ud800\\udc00\":\"x\",\"\\uffff\":\"x\"}", 0},
        {"{\"a\":\"x\",\"a\":\"x\"}", 0},
        {"{\"a\":\"x\",\"\\u0061\":\"y\"}", 0},
        {"{\"a\":\"x\",\"b\":\"x\",\"a\":\"x\"}", 0},
    };
    (void)state;
    assert_int_equal(try_spec("", 0, NULL), BAGS_ERROR_CORRUPT);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t size = rows[i].size ? rows[i].size : strlen(rows[i].spec);
        bags_code code = try_spec(rows[i].spec, size, NULL);
        if (code != BAGS_ERROR_CORRUPT)
            fail_msg("row %zu, %s: %s", i, rows[i].spec, bags_code_name(code));
        assert_says("spec.json");
    }
}

static void invalid_types_in_a_spec_are_refused(void **state) {
    static const char *const rows[] = {"{\"title\":\"\"}", "{\"title\":\"[]\"}",
        "{\"title\":\"Utf8\"}", "{\"title\":\"utf8\\n\"}", "{\"title\":\"utf8 \"}",
        "{\"title\":\"utf8[][]\"}", "{\"title\":\"array(<f4)\"}",
        "{\"title\":\"\\u0000\"}", "{\"title\":\"utf8\\u0000\"}", "{\"title\":\"a/b\"}",
        "{\"title\":\"\xc3\xa9\"}"};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_code code = try_spec(rows[i], strlen(rows[i]), NULL);
        assert_true(code == BAGS_ERROR_TYPE || code == BAGS_ERROR_CORRUPT);
        assert_says("spec.json");
    }
}

static void field_names_that_lead_outside_the_directory_are_refused(void **state) {
    static const char *const rows[] = {"{\"refs\":\"x\"}", "{\"r\\u0065fs\":\"x\"}",
        "{\"a/b\":\"x\"}", "{\"a\\/b\":\"x\"}", "{\"a\\u002fb\":\"x\"}",
        "{\"/\":\"x\"}", "{\"/etc/passwd\":\"x\"}", "{\"../x\":\"x\"}",
        "{\"..\\/..\\/x\":\"x\"}", "{\"a/\":\"x\"}", "{\"a\\u0000b\":\"x\"}",
        "{\"\\u0000\":\"x\"}", "{\"a\":\"x\",\"b\\u0000/../c\":\"x\"}"};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_code code = try_spec(rows[i], strlen(rows[i]), NULL);
        if (code != BAGS_ERROR_FIELD &&
            !(strstr(rows[i], "u0000") && code == BAGS_ERROR_CORRUPT))
            fail_msg("%s: %s", rows[i], bags_code_name(code));
        assert_says("spec.json");
    }
}

static void every_truncated_spec_is_refused(void **state) {
    static const char spec[] =
        "{\"\\ud83d\": 1}{\"a\": \"bytes\", \"b\\u00e9\": \"utf8[]\"}";
    const char *complete = spec + 13;
    (void)state;
    assert_int_equal(try_spec(complete, strlen(complete), NULL), BAGS_OK);
    for (size_t size = 0; size < strlen(complete); size++)
        assert_int_equal(try_spec(complete, size, NULL), BAGS_ERROR_CORRUPT);
}

/* A byte order mark is not JSON; a reader that accepts it must read the
 * rest. */
static void a_byte_order_mark_does_no_harm(void **state) {
    static const char spec[] = "\xef\xbb\xbf{\"a\": \"bytes\"}";
    char fields[64];
    (void)state;
    bags_code code = try_spec(spec, sizeof spec - 1, fields);
    assert_true(code == BAGS_ERROR_CORRUPT ||
                (code == BAGS_OK && strcmp(fields, "a=bytes;") == 0));
}

static void nesting_of_any_depth_is_refused(void **state) {
    static const char *const parts[] = {"[", "{\"a\":", "[{\"a\":"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        bytes spec = {NULL, 0, 0};
        put_text(&spec, "{\"a\":");
        while (spec.size < 1000000)
            put_text(&spec, parts[i]);
        assert_int_equal(try_spec(spec.data, spec.size, NULL), BAGS_ERROR_CORRUPT);
        bytes_free(&spec);
    }
}

static void specs_have_a_size_limit(void **state) {
    const size_t limit = 1 << 20;
    bytes spec = {NULL, 0, 0};
    (void)state;
    put_text(&spec, "{\"a\": \"bytes\"}");
    while (spec.size < limit)
        put_text(&spec, " ");
    assert_int_equal(try_spec(spec.data, spec.size, NULL), BAGS_OK);
    put_text(&spec, " ");
    poison();
    bags_code code = try_spec(spec.data, spec.size, NULL);
    assert_true(code == BAGS_ERROR_LIMIT || code == BAGS_ERROR_CORRUPT);
    assert_says("spec.json");
    bytes_free(&spec);
}

static void specs_have_a_limit_of_fields(void **state) {
    (void)state;
    for (int count = 65535; count <= 65536; count++) {
        bytes spec = {NULL, 0, 0};
        put_text(&spec, "{");
        for (int i = 0; i < count; i++)
            put_format(&spec, "%s\"%05d\":\"x\"", i ? "," : "", i);
        put_text(&spec, "}");
        bags_code code = try_spec(spec.data, spec.size, NULL);
        if (count == 65535)
            assert_int_equal(code, BAGS_OK);
        else
            assert_true(code == BAGS_ERROR_LIMIT || code == BAGS_ERROR_CORRUPT);
        bytes_free(&spec);
    }
}

/* A name of 100,000 characters, and one of control characters: messages stay
 * one line of UTF-8 that contains the reason. */
static void messages_about_odd_names_are_one_line_of_utf8(void **state) {
    static const char *const names[] = {
        "a\\nb", "\\u001b[31mred", "\\u007f", "\\r\\n", "\\u0085\\u2028", "%s%n%d"};
    (void)state;
    for (size_t i = 0; i <= sizeof names / sizeof names[0]; i++) {
        bool is_long = i == sizeof names / sizeof names[0];
        bytes spec = {NULL, 0, 0};
        bags_reader *reader;
        bags_row row = {0};
        make_dir(at("x"));
        put_text(&spec, "{\"");
        for (int k = 0; is_long && k < 100000; k++)
            put_text(&spec, k % 2 ? "\xe2\x82\xac" : "\xc3\xa9");
        if (!is_long)
            put_text(&spec, names[i]);
        put_text(&spec, "\": \"bytes\"}");
        save(at("x/spec.json"), spec.data, spec.size);
        save(at("x/refs.bag"), "\x91\x00\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 18);
        poison();
        reader = bags_reader_open(at("x"), NULL, &said);
        bags_code code = said.code;
        if (is_long) {
            assert_null(reader);
            assert_int_equal(code, BAGS_ERROR_FIELD);
            assert_non_null(strstr(said.message, "too long for a file name"));
        } else {
            assert_non_null(reader);
            code = bags_reader_get(reader, 0, NULL, 0, &row, &said);
        }
        assert_int_not_equal(code, BAGS_OK);
        CHECK(is_code((int)code, (int)code, "bags_reader_get"));
        code = bags_verify(at("x"), NULL, NULL, &said);
        CHECK(is_code((int)code, (int)code, "bags_verify"));
        bags_row_free(&row);
        bags_reader_close(reader);
        bytes_free(&spec);
        remove_tree(at("x"));
    }
    static const char *const paths[] = {"new\nline", "\xff\xfe", "\x1b[2J", "%s%s%s%n"};
    for (size_t i = 0; i < 4; i++) {
        if (ON_WINDOWS && paths[i][0] == '\xff') {
            assert_refused(BAGS_ERROR_IO, /* there only UTF-8 is a path */
                bag_reader_open(at("%s", paths[i]), NULL, &said));
            continue;
        }
        assert_refused(
            BAGS_ERROR_MISSING, bags_reader_open(at("%s", paths[i]), NULL, &said));
        assert_refused(
            BAGS_ERROR_MISSING, bag_reader_open(at("%s", paths[i]), NULL, &said));
    }
}

/* ---- special files ---- */

static void save_small(const char *path) {
    hand_set set;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "bytes");
    set_begin(&set);
    set_text(&set, 0, "text");
    set_end(&set);
    set_save(&set, V1, path);
    set_free(&set);
}

static bags_code read_all(const char *path, bool no_mmap) {
    bags_reader_options options = {0};
    options.no_mmap = no_mmap;
    options.env.allocator = &memory.allocator;
    return read_dataset(path, &options);
}

/* A pipe would wait for a writer forever; a device has no end. */
static void pipes_and_devices_are_refused(void **state) {
    static const char *const names[] = {"x/spec.json", "x/refs.bag", "x/a.bag"};
    static const char *const targets[] = {
        NULL, "/dev/zero", "/dev/null", "/dev/tty", "/", "nowhere", "a.bag"};
    (void)state;
    skip_on_windows("needs pipes and devices among files");
    alarm(60);
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < sizeof targets / sizeof targets[0]; k++) {
            if (i == 2 && k == 6)
                continue; /* a.bag itself: a loop, tested below */
            save_small(at("x"));
            remove_tree(at("%s", names[i]));
            if (targets[k])
                assert_int_equal(symlink(targets[k], at("%s", names[i])), 0);
            else
                assert_int_equal(mkfifo(at("%s", names[i]), 0600), 0);
            for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
                poison();
                bags_code code = read_all(at("x"), no_mmap == 1);
                if (code == BAGS_OK)
                    fail_msg("%s as %s was read", names[i],
                        targets[k] ? targets[k] : "a pipe");
                assert_int_equal(said.code, code);
            }
            remove_tree(at("x"));
        }
    assert_int_equal(mkfifo(at("pipe.bag"), 0600), 0);
    assert_null(bag_reader_open(at("pipe.bag"), NULL, &said));
    assert_null(bag_reader_open("/dev/zero", NULL, &said));
    assert_null(bags_reader_open("/dev/zero", NULL, &said));
    assert_null(bags_reader_open(at("pipe.bag"), NULL, &said));
    assert_int_equal(symlink("loop.bag", at("loop.bag")), 0);
    assert_null(bag_reader_open(at("loop.bag"), NULL, &said));
    alarm(0);
}

static void symbolic_links_are_followed(void **state) {
    (void)state;
    skip_on_windows("a user may not make symbolic links");
    make_dir(at("x"));
    save_small(at("real"));
    assert_int_equal(symlink("../real", at("x/000000")), 0);
    save_small(at("x/000001"));
    remove_tree(at("x/000001/a.bag"));
    assert_int_equal(symlink("../../real/a.bag", at("x/000001/a.bag")), 0);
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    assert_true(bags_reader_length(reader) == 2);
    bags_reader_close(reader);
    assert_int_equal(read_all(at("x"), false), BAGS_OK);
}

static void directories_in_place_of_files_are_errors(void **state) {
    static const char *const names[] = {"spec.json", "refs.bag", "a.bag"};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        save_small(at("x"));
        remove_tree(at("x/%s", names[i]));
        make_dir(at("x/%s", names[i]));
        for (int no_mmap = 0; no_mmap < 2; no_mmap++) {
            poison();
            bags_code code = read_all(at("x"), no_mmap == 1);
            assert_int_not_equal(code, BAGS_OK);
            assert_int_equal(said.code, code);
        }
        remove_tree(at("x"));
    }
}

/* Whatever is in place of a file, verify reports it and recover keeps it:
 * neither waits, and nothing outside is changed. */
static void special_files_are_reported_by_verify_and_kept_by_recover(void **state) {
    static const char *const split[] = {"x/a.idx", "x/a.bag", NULL};
    static const char *const complete[] = {
        "x/spec.json", "x/refs.bag", "x/a.bag", NULL};
    static const char *const crashed[] = {
        "x/spec.json.partial", "x/refs.bag", "x/refs.idx", "x/a.bag", "x/a.idx", NULL};
    static const char *const *const lists[] = {split, complete, crashed};
    static const char *const targets[] = {
        NULL, "/dev/zero", "/dev/full", "/", "nowhere", "../x/a.bag/..", "../outside"};
    (void)state;
    skip_on_windows("needs pipes and devices among files");
    alarm(60);
    for (size_t list = 0; list < 3; list++)
        for (size_t i = 0; lists[list][i]; i++)
            for (size_t k = 0; k < sizeof targets / sizeof *targets; k++) {
                const char *path = at("%s", lists[list][i]);
                hand_set set;
                memset(&set, 0, sizeof set);
                set_field(&set, "a", "bytes");
                set_begin(&set);
                set_text(&set, 0, "text");
                set_end(&set);
                set_save(&set, list == 1 ? V1 : SPLIT, at("x"));
                if (list == 2) {
                    save(at("x/refs.bag"), "\x91\0", 2);
                    save(at("x/refs.idx"), "\2\0\0\0\0\0\0\0", 8);
                    assert_int_equal(
                        rename(at("x/spec.json"), at("x/spec.json.partial")), 0);
                }
                set_free(&set);
                save_text(at("outside"), "not yours");
                remove_tree(path);
                if (targets[k])
                    assert_int_equal(symlink(targets[k], path), 0);
                else
                    assert_int_equal(mkfifo(path, 0600), 0);
                bags_recover_options recover;
                bags_verify_options verify;
                memset(&recover, 0, sizeof recover);
                memset(&verify, 0, sizeof verify);
                recover.no_sync = true;
                recover.env.allocator = verify.env.allocator = &memory.allocator;
                poison();
                bags_code code = bags_verify(at("x"), &verify, NULL, &said);
                /* Links are followed for reading: the file outside is a
                 * blob. */
                bool followed = list == 0 && i == 1 && k == 6;
                if ((code == BAGS_OK) != followed)
                    fail_msg("%s, %d: verify says %s", lists[list][i], (int)k,
                        bags_code_name(code));
                if (list == 2)
                    bags_recover(at("x"), &recover, NULL, NULL);
                assert_file(at("outside"), "not yours", 9);
                if (exists(at("x"))) /* without refs.idx there is no datapoint */
                    remove_tree(at("x"));
            }
    alarm(0);
}

static void paths_in_any_spelling_work(void **state) {
    char here[4096];
    (void)state;
    assert_non_null(getcwd(here, sizeof here));
    save_small(at("x"));
    assert_int_equal(read_all(at("x/"), false), BAGS_OK);
    assert_int_equal(read_all(at("x//"), false), BAGS_OK);
    assert_int_equal(read_all(at("./x/."), false), BAGS_OK);
    assert_int_equal(chdir(at("x")), 0);
    bags_code dot = read_all(".", false), up = read_all("../x", false);
    bag_reader *bag = bag_reader_open("a.bag", NULL, &said);
    bags_field field = {"a", "bytes"};
    bags_writer *writer = bags_writer_open("inner", &field, 1, NULL, &said);
    bags_code closed = bags_writer_close(writer, &said);
    bags_code inner = read_all("inner", false);
    bags_writer *deep = bags_writer_open("p/q//r/", &field, 1, NULL, &said);
    bags_code deep_closed = bags_writer_close(deep, &said);
    bags_code deep_read = read_all("p/q/r", false);
    assert_int_equal(chdir(here), 0);
    assert_int_equal(dot, BAGS_OK);
    assert_int_equal(up, BAGS_OK);
    assert_non_null(bag);
    bag_reader_close(bag);
    assert_non_null(writer);
    assert_int_equal(closed, BAGS_OK);
    assert_int_equal(inner, BAGS_OK);
    assert_non_null(deep);
    assert_int_equal(deep_closed, BAGS_OK);
    assert_int_equal(deep_read, BAGS_OK);
}

/* On a disk that knows only the directories that were created: the parent
 * directory must be synced, however it is spelled. */
static void parent_directories_are_found_in_every_spelling(void **state) {
    static const char *const paths[] = {"a", "a/", "a//", "p/a", "p/a/", "p//a//",
        "./a", "/a", "//a/", "/p/q/a", "p/q/r/s/a", "./p/./a/", "a.bag", "p/a.b.c"};
    bags_field field = {"f", "bytes"};
    bags_value value = bags_blob("x", 1);
    bags_entry one = {"f", &value, 1};
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        for (int sharded = 0; sharded < 2; sharded++) {
            memory_disk m;
            bags_writer_options options;
            bags_reader_options read;
            bags_writer *writer;
            bags_reader *reader;
            if (ON_WINDOWS && strcmp(paths[i], "//a/") == 0)
                continue; /* "//" is another machine there */
            memory_disk_start(&m);
            if (strstr(paths[i], "./"))
                memory_disk_make_dir(&m, "./p/."); /* this disk resolves no dots */
            memset(&options, 0, sizeof options);
            memset(&read, 0, sizeof read);
            options.shard_stop = (uint64_t)sharded;
            options.env.io = &m.io;
            read.env.io = &m.io;
            assert_opens(
                writer, bags_writer_open(paths[i], &field, 1, &options, &said));
            assert_ok(bags_writer_append(writer, &one, 1, &said));
            assert_ok(bags_writer_close(writer, &said));
            assert_opens(reader, bags_reader_open(paths[i], &read, &said));
            assert_true(bags_reader_length(reader) == 1);
            bags_reader_close(reader);
            assert_ok(verify_path(paths[i], &read.env, &said));
            memory_disk_free(&m);
        }
}

/* ---- files larger than any disk ---- */

/* Files of any size that contain zeros, except for some bytes at their ends.
 * Every path that ends like this is that file. A path that ends differently is a
 * directory if it has no dot, and does not exist if it has one. */
typedef struct ghost {
    const char *ending;
    uint64_t size;
    bytes head, tail;
} ghost;

typedef struct ghosts {
    bags_io io;
    ghost files[4];
    size_t count;
    uint64_t names;     /* in every directory: numbers, or */
    bool strange_names; /* other names */
    uint64_t calls, read;
    int open, peak;
} ghosts;

static ghost *ghost_find(ghosts *g, const char *path) {
    for (size_t i = 0; i < g->count; i++) {
        size_t size = strlen(g->files[i].ending), length = strlen(path);
        if (length >= size && strcmp(path + length - size, g->files[i].ending) == 0)
            return &g->files[i];
    }
    return NULL;
}

static int ghost_open(void *user, const char *path, int mode, void **file) {
    ghosts *g = (ghosts *)user;
    g->calls++;
    *file = mode == BAGS_IO_READ ? ghost_find(g, path) : NULL;
    if (!*file)
        return ENOENT;
    g->open++;
    g->peak = g->open > g->peak ? g->open : g->peak;
    return 0;
}

static int ghost_close(void *user, void *file) {
    (void)file;
    ((ghosts *)user)->open--;
    return 0;
}

static int ghost_size(void *user, void *file, uint64_t *size) {
    (void)user;
    *size = ((ghost *)file)->size;
    return 0;
}

static void ghost_copy(const bytes *from, uint64_t start, uint64_t offset,
    unsigned char *data, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (offset + i >= start && offset + i - start < from->size)
            data[i] = from->data[offset + i - start];
}

static int ghost_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    const ghost *from = (const ghost *)file;
    uint64_t rest = offset < from->size ? from->size - offset : 0;
    *done = size > rest ? (size_t)rest : size;
    memset(data, 0, *done);
    ghost_copy(&from->head, 0, offset, (unsigned char *)data, *done);
    ghost_copy(&from->tail, from->size - from->tail.size, offset, (unsigned char *)data,
        *done);
    ((ghosts *)user)->read += *done;
    return 0;
}

static int ghost_kind(void *user, const char *path, bags_path_kind *kind) {
    const char *slash = strrchr(path, '/');
    ((ghosts *)user)->calls++;
    *kind = ghost_find((ghosts *)user, path) ? BAGS_PATH_FILE
            : strchr(slash ? slash : path, '.') ? BAGS_PATH_NONE
                                                : BAGS_PATH_DIRECTORY;
    return 0;
}

static int ghost_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    ghosts *g = (ghosts *)user;
    (void)path;
    for (uint64_t i = 0; i < g->names; i++) {
        char name[32];
        sprintf(name, g->strange_names ? "x%06d" : "%06d", (int)i);
        int error = each(each_user, name);
        if (error)
            return error;
    }
    return 0;
}

static void ghosts_start(ghosts *g) {
    memset(g, 0, sizeof *g);
    g->io.user = g;
    g->io.open = ghost_open;
    g->io.close = ghost_close;
    g->io.size = ghost_size;
    g->io.read_at = ghost_read;
    g->io.kind = ghost_kind;
    g->io.list = ghost_list;
}

static void ghosts_end(ghosts *g) {
    assert_int_equal(g->open, 0);
    for (size_t i = 0; i < g->count; i++) {
        bytes_free(&g->files[i].head);
        bytes_free(&g->files[i].tail);
    }
}

/* A file of zeros with this size, or if 0, with the size of its head. */
static ghost *ghost_add(ghosts *g, const char *ending, uint64_t size) {
    ghost *file = &g->files[g->count++];
    file->ending = ending;
    file->size = size;
    return file;
}

static void ghost_add_text(ghosts *g, const char *ending, const char *text) {
    ghost *file = ghost_add(g, ending, strlen(text));
    put_text(&file->head, text);
}

/* A complete Bag of one blob. */
static void ghost_add_bag(ghosts *g, const char *ending, const bytes *blob) {
    ghost *file = ghost_add(g, ending, blob->size + 16);
    put(&file->head, blob->data, blob->size);
    put_u64(&file->head, 0);
    put_u64(&file->head, blob->size);
}

/* 2^60 - 1 empty blobs, and one blob of 2^62 bytes. */
static void bags_of_8_eib_cost_nothing_to_open(void **state) {
    for (int huge = 0; huge < 2; huge++)
        for (int load = 0; load < 2; load++) {
            ghosts g;
            bag_reader_options options;
            bags_buffer scratch = {NULL, 0, NULL, NULL};
            bags_view blob = {NULL, 9};
            bag_blobs range;
            (void)state;
            ghosts_start(&g);
            ghost *file = ghost_add(&g, ".bag", (uint64_t)INT64_MAX - 7);
            if (huge) {
                put_u64(&file->tail, 0);
                put_u64(&file->tail, (uint64_t)1 << 62);
            }
            memset(&options, 0, sizeof options);
            options.cache_index = load == 1;
            options.env.allocator = &memory.allocator;
            options.env.io = &g.io;
            memory.limit = 1 << 20;
            poison();
            bag_reader *reader = bag_reader_open("x.bag", &options, &said);
            if (load) {
                assert_null(reader);
                assert_true(
                    said.code == BAGS_ERROR_MEMORY || said.code == BAGS_ERROR_LIMIT);
            } else {
                assert_non_null(reader);
                uint64_t last = bag_reader_length(reader) - 1;
                assert_true(last > (uint64_t)1 << 58);
                assert_ok(bag_reader_get(reader, 0, &scratch, &blob, &said));
                assert_int_equal(blob.size, 0);
                bags_code code = bag_reader_get(reader, last, &scratch, &blob, &said);
                bags_code refused =
                    sizeof(size_t) < 8 ? BAGS_ERROR_LIMIT : BAGS_ERROR_MEMORY;
                assert_int_equal(code, huge ? refused : BAGS_OK);
                code = bag_reader_get_range(reader, 0, last, &scratch, &range, &said);
                assert_true(code == BAGS_ERROR_MEMORY || code == BAGS_ERROR_LIMIT);
            }
            bags_verify_options quick;
            bags_verify_report report;
            memset(&quick, 0, sizeof quick);
            quick.quick = true;
            quick.env.allocator = &memory.allocator;
            quick.env.io = &g.io;
            assert_ok(bags_verify("x.bag", &quick, &report, &said));
            assert_true(g.read < 1000 && memory.peak < 200000);
            bags_buffer_free(&scratch);
            bag_reader_close(reader);
            ghosts_end(&g);
        }
}

/* One datapoint that claims 2^32 items, which exist. */
static void a_sequence_of_4_billion_items_is_read_in_part(void **state) {
    const uint64_t items = (uint64_t)1 << 32;
    ghosts g;
    bytes row = {NULL, 0, 0};
    bags_reader_options options;
    bags_reader *reader;
    bags_row got = {0};
    uint64_t count = 0;
    (void)state;
    ghosts_start(&g);
    ghost_add_text(&g, "spec.json", "{\"a\": \"bytes[]\"}");
    put_array(&row, 1);
    put_array(&row, 2);
    put_uint(&row, 0);
    put_uint(&row, items);
    ghost_add_bag(&g, "refs.bag", &row);
    ghost_add(&g, "a.bag", 8 * (items + 1));
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    options.env.io = &g.io;
    memory.limit = 1 << 20;
    assert_opens(reader, bags_reader_open("x", &options, &said));
    assert_ok(bags_reader_items(reader, 0, 0, &got, &count, &said));
    assert_true(count == items);
    assert_fails(BAGS_ERROR_MEMORY, bags_reader_get(reader, 0, NULL, 0, &got, &said));
    bags_select last = bags_select_slice(0, items - 5, UINT64_MAX, 1);
    assert_ok(bags_reader_get(reader, 0, &last, 1, &got, &said));
    assert_int_equal(bags_row_length(&got, 0), 5);
    assert_true(g.read < 1000);
    bags_row_free(&got);
    bags_reader_close(reader);
    bytes_free(&row);
    ghosts_end(&g);
}

/* 65,535 fields: a few hundred bytes each, and no more open files than
 * allowed. */
static void a_datapoint_of_65535_fields_is_read_within_bounds(void **state) {
    ghosts g;
    bytes row = {NULL, 0, 0}, x = {NULL, 0, 0}, spec = {NULL, 0, 0};
    bags_reader_options options;
    bags_reader *reader;
    bags_row got = {0};
    (void)state;
    ghosts_start(&g);
    put_text(&spec, "{");
    put_array(&row, 65535);
    for (int i = 0; i < 65535; i++) {
        put_format(&spec, "%s\"%05d\":\"utf8\"", i ? "," : "", i);
        put_uint(&row, 0);
    }
    put_text(&spec, "}");
    ghost *file = ghost_add(&g, "spec.json", spec.size);
    file->head = spec;
    put_text(&x, "x");
    ghost_add_bag(&g, "refs.bag", &row);
    ghost_add_bag(&g, ".bag", &x);
    memset(&options, 0, sizeof options);
    options.env.allocator = &memory.allocator;
    options.env.io = &g.io;
    options.max_files = 10;
    assert_opens(reader, bags_reader_open("x", &options, &said));
    assert_true(memory.peak < 256 * 65535);
    bags_select one = bags_select_all(65534);
    assert_ok(bags_reader_get(reader, 0, &one, 1, &got, &said));
    assert_text(bags_row_bytes(&got, 0, 0), "x");
    assert_true(memory.peak < 288 * 65535);
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &got, &said));
    assert_int_equal(bags_row_length(&got, 65534), 1);
    print_message("%d bytes a field\n", (int)(memory.peak / 65535));
    assert_true(memory.peak < 1024 * 65535 && g.peak <= 12);
    bags_row_free(&got);
    bags_reader_close(reader);
    bags_verify_options verify;
    memset(&verify, 0, sizeof verify);
    verify.env.allocator = &memory.allocator;
    verify.env.io = &g.io;
    verify.decode = true;
    memory.peak = 0;
    g.peak = 0;
    assert_ok(bags_verify("x", &verify, NULL, &said));
    assert_true(memory.peak < 1024 * 65535 && g.peak <= 66);
    bytes_free(&row);
    bytes_free(&x);
    ghosts_end(&g);
}

/* Names that are not shards need no memory, shards 16 bytes, in an array that
 * doubles. */
static void a_directory_of_a_million_names_needs_little_memory(void **state) {
    (void)state;
    for (int strange = 0; strange < 2; strange++) {
        ghosts g;
        bags_verify_options verify;
        bags_reader_options options;
        memset(&options, 0, sizeof options);
        memset(&verify, 0, sizeof verify);
        ghosts_start(&g);
        g.names = support_stride() > 1 ? 100000 : 1000000;
        g.strange_names = strange == 1;
        options.env.allocator = verify.env.allocator = &memory.allocator;
        options.env.io = verify.env.io = &g.io;
        memory.peak = 0;
        assert_null(bags_reader_open("x", &options, &said));
        if (!strange)
            assert_true(said.code == BAGS_ERROR_UNFINISHED);
        else
            g.names = 1000;
        bags_code code = bags_verify("x", &verify, NULL, &said);
        assert_int_equal(code, strange ? BAGS_ERROR_MISSING : BAGS_ERROR_UNFINISHED);
        /* A list of names and, since all may be shards, a reader's array of them. */
        assert_true(memory.peak < (strange ? 10000 : 128 * g.names));
        ghosts_end(&g);
    }
}

static unsigned decoded;

static bags_code count_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    (void)state;
    (void)scratch;
    (void)err;
    decoded++;
    *value = bags_bytes(blob.data, blob.size);
    return BAGS_OK;
}

/* Every datapoint refers to all blobs: a read costs what was requested; and to
 * verify them all costs no more than if each had one. */
static void blobs_shared_by_all_datapoints_are_decoded_once(void **state) {
    const size_t many = 2000;
    bags_codec codec = {"counted", NULL, NULL, count_decode, NULL, NULL, NULL};
    memory_disk m;
    hand_set set;
    bags_verify_report report;
    (void)state;
    memset(&set, 0, sizeof set);
    set_field(&set, "a", "counted[]");
    for (size_t i = 0; i < many; i++) {
        hand_add(&set.bags[0], "abc", 3);
        unsigned char row[] = {0x91, 0x92, 0x00, 0xcd, 0x07, 0xd0};
        hand_add(&set.refs, row, sizeof row);
    }
    memory_disk_start(&m);
    memory_disk_save_set(&m, &set, V1, "x");
    bags_registry *codecs = bags_registry_create(NULL, &said);
    assert_non_null(codecs);
    assert_ok(bags_registry_add(codecs, &codec, &said));
    bags_verify_options options;
    memset(&options, 0, sizeof options);
    options.decode = true;
    options.registry = codecs;
    options.env.allocator = &memory.allocator;
    options.env.io = &m.io;
    decoded = 0;
    memory.peak = 0;
    assert_ok(bags_verify("x", &options, &report, &said));
    assert_int_equal(decoded, many);
    assert_true(report.bytes < 64 * many && memory.peak < 200000);
    bags_registry_free(codecs);
    set_free(&set);
    memory_disk_free(&m);
}

/* ---- random damage ---- */

/* A dataset with plain fields and sequences, some bytes of which are changed.
 * The result is a value or an error of one line, with no more memory than the
 * files justify. */
static void random_damage_does_no_harm(void **state) {
    uint64_t random = 7;
    hand_set set;
    unsigned refused = 0, read = 0;
    (void)state;
    for (int round = 0; round < 600; round++) {
        memory_disk m;
        memset(&set, 0, sizeof set);
        set_field(&set, "a", "array(int16,-1)");
        set_field(&set, "b", "utf8[]");
        set_field(&set, "c", "array");
        for (size_t i = 0; i < 5; i++) {
            set_begin(&set);
            set_blob(&set, 0, "abcdefgh", i * 2);
            set_items(&set, 1, "item", i);
            set_blob(&set, 2, "\x93\xa3<u2\x91\x02\xc4\x04\1\2\3\4", 13);
            set_end(&set);
        }
        memory_disk_start(&m);
        memory_disk_save_set(&m, &set, next_random(&random) % 2 ? V1 : V2, "x");
        set_free(&set);
        static const char *const files[] = {
            "x/a.bag", "x/b.bag", "x/c.bag", "x/refs.bag"};
        for (uint64_t k = next_random(&random) % 4 + 1; k; k--) {
            const char *name = files[next_random(&random) % 4];
            bags_view file = memory_disk_find(&m, name);
            bytes copy = {NULL, 0, 0};
            put(&copy, file.data, file.size);
            size_t place = (size_t)(next_random(&random) % copy.size);
            if (next_random(&random) % 2) /* the table */
                place = copy.size - 1 - place % 48;
            copy.data[place] = (unsigned char)next_random(&random);
            if (next_random(&random) % 8 == 0)
                copy.size -= place % copy.size;
            memory_disk_save(&m, name, copy.data, copy.size);
            bytes_free(&copy);
        }
        bags_reader_options options;
        memset(&options, 0, sizeof options);
        options.no_mmap = next_random(&random) % 2;
        options.cache_index = next_random(&random) % 2;
        options.env.allocator = &memory.allocator;
        options.env.io = &m.io;
        memory.peak = memory.used;
        poison();
        bags_reader *reader = bags_reader_open("x", &options, &said);
        bags_row row = {0};
        uint64_t length = reader ? bags_reader_length(reader) + 1 : 0;
        if (!reader)
            CHECK(is_code((int)said.code, (int)said.code, "bags_reader_open"));
        refused += !reader;
        for (uint64_t i = 0; i < length; i++) {
            poison();
            bags_code code = bags_reader_get(reader, i, NULL, 0, &row, &said);
            CHECK(is_code((int)code, (int)code, "bags_reader_get"));
            refused += code != BAGS_OK;
            read += code == BAGS_OK;
            for (size_t slot = 0; slot < 3; slot++)
                for (size_t k = 0; k < bags_row_length(&row, slot); k++) {
                    bags_value value;
                    sha256 s;
                    bags_view blob = bags_row_bytes(&row, slot, k);
                    sha256_start(&s); /* touch every byte */
                    sha256_add(&s, blob.data, blob.size);
                    poison();
                    code = bags_row_value(&row, slot, k, NULL, &value, &said);
                    CHECK(is_code((int)code, (int)code, "bags_row_value"));
                    if (!code && value.size)
                        sha256_add(&s, value.data, value.size);
                }
        }
        assert_true(memory.peak < 100000);
        bags_row_free(&row);
        bags_reader_close(reader);
        memory_disk_free(&m);
    }
    print_message("%u reads, %u refused\n", read, refused);
    assert_true(refused > 300 && read > 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(specs_with_any_json_formatting_are_read),
        TEST(invalid_specs_are_refused),
        TEST(invalid_types_in_a_spec_are_refused),
        TEST(field_names_that_lead_outside_the_directory_are_refused),
        TEST(every_truncated_spec_is_refused),
        TEST(a_byte_order_mark_does_no_harm),
        TEST(nesting_of_any_depth_is_refused),
        TEST(specs_have_a_size_limit),
        TEST(specs_have_a_limit_of_fields),
        TEST(messages_about_odd_names_are_one_line_of_utf8),
        TEST(pipes_and_devices_are_refused),
        TEST(symbolic_links_are_followed),
        TEST(directories_in_place_of_files_are_errors),
        TEST(special_files_are_reported_by_verify_and_kept_by_recover),
        TEST(paths_in_any_spelling_work),
        TEST(parent_directories_are_found_in_every_spelling),
        TEST(bags_of_8_eib_cost_nothing_to_open),
        TEST(a_sequence_of_4_billion_items_is_read_in_part),
        TEST(a_datapoint_of_65535_fields_is_read_within_bounds),
        TEST(a_directory_of_a_million_names_needs_little_memory),
        TEST(blobs_shared_by_all_datapoints_are_decoded_once),
        TEST(random_damage_does_no_harm),
    };
    return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
