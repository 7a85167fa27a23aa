/* Datasets in one directory: what a writer leaves on disk, and when it leaves
 * nothing. The files are compared with files made by hand. */
// flavours: test: release; check: asan
#include "check.h"
#include "durability.h"

#include <errno.h>
#include <math.h>

static bags_writer_options writing(size_t buffer_size) {
    bags_writer_options options;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.buffer_size = buffer_size;
    options.env.allocator = &memory.allocator;
    options.env.io = &disk.io;
    return options;
}

static bags_writer *open_writer(
    const char *path, const bags_field *fields, size_t count, size_t buffer_size) {
    bags_writer_options options = writing(buffer_size);
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(path, fields, count, &options, &said));
    return writer;
}

/* The same for types that nobody knows. */
static bags_writer *open_any(const char *path, const bags_field *fields, size_t count) {
    bags_writer_options options = writing(0);
    bags_writer *writer;
    options.any_type = true;
    assert_opens(writer, bags_writer_open(path, fields, count, &options, &said));
    return writer;
}

static bags_entry entry(const char *field, const bags_value *values, size_t count) {
    bags_entry made;
    made.field = field;
    made.values = values;
    made.count = count;
    return made;
}

/* ---- names ---- */

static void the_spec_is_written_as_python_writes_it(void **state) {
    static const bags_field fields[] = {{"zeta", "utf8"}, {"\xc3\xa9", "int(4)"},
        {"10", "utf8"}, {"9", "utf8[]"}, {"B", "array(float32,2,-1)[]"}, {"_x", "q()"},
        {"a", "utf8"}, {"a b", "utf8"}, {"a-b", "utf8"}, {"a.b", "utf8"}, {"~", "utf8"},
        {"\xf0\x90\x80\x80", "utf8"}, {"\xef\xbf\xbd", "utf8"},
        {"\xf0\x9f\x98\x80", "utf8"}, {"\xe2\x80\xa8", "utf8"}, {"'$%&", "utf8"}};
    static const char expected[] =
        "{\"'$%&\": \"utf8\", \"10\": \"utf8\", \"9\": \"utf8[]\", "
        "\"B\": \"array(float32,2,-1)[]\", \"_x\": \"q()\", \"a\": \"utf8\", "
        "\"a b\": \"utf8\", \"a-b\": \"utf8\", \"a.b\": \"utf8\", "
        "\"zeta\": \"utf8\", \"~\": \"utf8\", \"\\u00e9\": \"int(4)\", "
        "\"\\u2028\": \"utf8\", \"\\ufffd\": \"utf8\", "
        "\"\\ud800\\udc00\": \"utf8\", \"\\ud83d\\ude00\": \"utf8\"}";
    (void)state;
    bags_writer *writer = open_any(at("x"), fields, 16);
    assert_file(at("x/spec.json.partial"), expected, sizeof expected - 1);
    assert_ok(bags_writer_close(writer, &said));
    assert_file(at("x/spec.json"), expected, sizeof expected - 1);
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    size_t count = 0;
    const bags_field *read = bags_reader_fields(reader, &count);
    assert_int_equal(count, 16);
    assert_string_equal(read[0].name, "'$%&");
    assert_string_equal(read[11].name, "\xc3\xa9");
    assert_string_equal(read[14].name, "\xf0\x90\x80\x80");
    bags_reader_close(reader);
}

static void refuse_name(const char *name) {
    bags_field fields[2] = {{"good", "utf8"}, {name, "utf8"}};
    poison();
    bags_writer *writer = bags_writer_open(at("x"), fields, 2, NULL, &said);
    if (writer)
        fail_msg("the field name \"%s\" was accepted", name);
    CHECK(is_refused((int)BAGS_ERROR_FIELD, writer, name));
    assert_names(at("."), "");
}

static void names_that_are_not_file_names_everywhere_are_refused(void **state) {
    static const char *const names[] = {"", "refs", ".", "..", ".hidden", "a/b", "/",
        "/a", "a/", "../a", "a\\b", "\\", "a:b", "a*b", "a?b", "a\"b", "a<b", "a>b",
        "a|b", "con", "CON", "Con", "prn", "aux", "AUX", "nul", "NUL", "com1", "COM9",
        "lpt1", "Lpt9", "con.x", "nul.tar.gz", "\xff", "\xc3", "a\xed\xa0\x80",
        "\xc0\xaf", "\xf5\x80\x80\x80"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        refuse_name(names[i]);
    for (int c = 1; c < 128; c++) {
        if (c >= 32 && c != 127)
            continue;
        char name[4] = {'a', (char)c, 'b', 0};
        refuse_name(name);
        name[0] = (char)c;
        name[1] = 0;
        refuse_name(name);
    }
}

static void other_names_are_written_and_read(void **state) {
    static const char *const names[] = {"a", "com", "com10", "lpt", "cone", "nulx",
        "xnul", "refs2", "xrefs", "refs.bag", "spec", "spec.json", "x.bag", "x.idx",
        "a.", "a ", " a", "-", "~", "con-x", "a..b", "\xe2\x82\xac",
        "{}[]()!@#$%^&+=`',;"};
    const size_t count = sizeof names / sizeof names[0];
    bags_field fields[32];
    bags_entry entries[32];
    bags_value value = bags_utf8("text");
    (void)state;
    for (size_t i = 0; i < count; i++) {
        fields[i].name = names[i];
        fields[i].type = "utf8";
        entries[i] = entry(names[i], &value, 1);
    }
    bags_writer *writer = open_writer(at("x"), fields, count, 0);
    assert_ok(bags_writer_append(writer, entries, count, &said));
    assert_ok(bags_writer_close(writer, &said));
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    bags_row row = {0};
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    for (size_t i = 0; i < count; i++)
        assert_text(bags_row_bytes(&row, i, 0), "text");
    bags_row_free(&row);
    bags_reader_close(reader);
}

static void a_duplicate_name_is_refused(void **state) {
    static const bags_field fields[] = {
        {"b", "utf8"}, {"a", "utf8"}, {"c", "utf8"}, {"a", "int"}};
    (void)state;
    assert_refused(BAGS_ERROR_FIELD, bags_writer_open(at("x"), fields, 4, NULL, &said));
    assert_says("a");
    assert_names(at("."), "");
}

static void types_that_cannot_be_parsed_are_refused(void **state) {
    static const char *const types[] = {
        "", "[]", "Utf8", "int(4", "utf8\n", "utf8[][]", "array(<f4)"};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        bags_field field;
        field.name = "caption";
        field.type = types[i];
        assert_refused(
            BAGS_ERROR_TYPE, bags_writer_open(at("x"), &field, 1, NULL, &said));
        assert_says("caption");
        assert_names(at("."), "");
    }
}

/* No value could ever be written. */
static void invalid_arguments_are_refused_when_a_writer_is_opened(void **state) {
    static const char *const types[] = {"int(0)", "int(0,big)[]", "int(x)",
        "int(4,5,6)", "i64(8)", "utf8(3)", "bytes(4)[]", "array()", "array(float31,2)",
        "array(float32,a)", "array(float32,-1,-1)",
        "array(float32,4294967296,4294967296)"};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        bags_field fields[] = {{"label", "int(4)"}, {"thing", types[i]}};
        assert_refused(
            BAGS_ERROR_TYPE, bags_writer_open(at("x"), fields, 2, NULL, &said));
        assert_says("x: field \"thing\": type \"");
        assert_says(types[i]);
        assert_names(at("."), "");
    }
}

/* Another program may have encoded their blobs, which are stored as they
 * are. */
static void unknown_types_are_legal_with_any_type(void **state) {
    static const char *const types[] = {
        "q()", "floats(0)", "int32(0)", "jpeg(900)", "array(complex64,2)", "int(2000)"};
    bags_value blob = bags_blob("any", 3);
    bags_value text = bags_utf8("any");
    bags_entry one = entry("thing", &blob, 1), other = entry("thing", &text, 1);
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        bags_field field = {"thing", types[i]};
        bags_writer *writer = open_any(at("%d", (int)i), &field, 1);
        if (i < 4 && i != 2) { /* these have no codec */
            assert_fails(BAGS_ERROR_TYPE, bags_writer_append(writer, &other, 1, &said));
            assert_says("field \"thing\": datapoint 0: type \"");
            assert_says(types[i]);
            assert_says("no codec for this type; *bags_blob");
        }
        assert_ok(bags_writer_append(writer, &one, 1, &said));
        bags_writer_clear(writer);
        assert_ok(bags_writer_close(writer, &said));
    }
}

static void unknown_types_are_refused_when_a_writer_is_opened(void **state) {
    static const struct {
        const char *type, *says;
    } cases[] = {
        {"string", "unknown type \"string\"; did you mean \"utf8\"?; set any_type"},
        {"string[]", "unknown type \"string[]\"; did you mean \"utf8[]\"?"},
        {"flaot32(2,3)[]", "did you mean \"float32(2,3)[]\"?"},
        {"float", "did you mean \"float32\"?"},
        {"double", "did you mean \"float64\"?"},
        {"half", "did you mean \"float16\"?"},
        {"boolean", "did you mean \"bool\"?"},
        {"image", "did you mean \"jpeg\"?"},
        {"json", "did you mean \"msgpack\"?"},
        {"long", "did you mean \"i64\"?"},
        {"q(1)", "unknown type \"q(1)\"; set any_type to store its blobs"},
        {"Float32", "invalid type (*did you mean \"float32\"?"},
        {"shiny", "unknown type \"shiny\"; did you mean \"shine\"?"},
    };
    static const bags_codec own = {"glow shine", NULL, NULL, NULL, NULL, NULL, NULL};
    bags_registry *codecs;
    bags_writer_options options = writing(0);
    bags_writer *writer;
    (void)state;
    assert_opens(codecs, bags_registry_create(&memory.allocator, &said));
    assert_ok(bags_registry_add(codecs, &own, &said));
    options.registry = codecs;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bags_field field = {"thing", cases[i].type};
        assert_refused(
            BAGS_ERROR_TYPE, bags_writer_open(at("x"), &field, 1, &options, &said));
        assert_says("x: field \"thing\": ");
        assert_says(cases[i].says);
        assert_names(at("."), "");
    }
    /* Types of formats/ without their codecs, and those of the registry. */
    static const bags_field known[] = {{"a", "shine"}, {"b", "jpeg(90)"}, {"c", "tree"},
        {"d", "zstd(utf8)"}, {"e", "npy[]"}};
    assert_opens(writer, bags_writer_open(at("x"), known, 5, &options, &said));
    assert_ok(bags_writer_close(writer, &said));
    bags_registry_free(codecs);
}

/* A dtype is short for an array of it, in the file and for readers that find it in one,
 * unless a codec has that name. */
static void names_of_dtypes_are_short_for_arrays(void **state) {
    static const bags_field fields[] = {{"a", "float32"}, {"b", "bool[]"},
        {"c", "float64(2,-1)[]"}, {"d", "zstd(int8,2)[]"}, {"e", "zstd(utf8)"},
        {"f", "uint16()"}, {"g", "complex64"}};
    static const char complete[] =
        "{\"a\": \"array(float32)\", \"b\": \"array(bool)[]\", "
        "\"c\": \"array(float64,2,-1)[]\", \"d\": \"zstd(array,int8,2)[]\", "
        "\"e\": \"zstd(utf8)\", \"g\": \"array(complex64)\"}";
    static const char kept[] = "{\"a\": \"float32\"}";
    static const bags_codec own = {"float32", NULL, NULL, NULL, NULL, NULL, NULL};
    const bags_field without_f[] = {
        fields[0], fields[1], fields[2], fields[3], fields[4], fields[6]};
    bags_writer_options options = writing(0);
    bags_registry *codecs;
    bags_value number = bags_real(1.5), read;
    bags_entry one = entry("a", &number, 1);
    bags_reader *reader;
    bags_row row = {0};
    bags_buffer out = {0};
    bags_view blob;
    (void)state;
    bags_writer *writer = open_writer(at("x"), without_f, 6, 0);
    assert_file(at("x/spec.json.partial"), complete, sizeof complete - 1);
    bags_writer_abort(writer);
    assert_refused(
        BAGS_ERROR_TYPE, bags_writer_open(at("x"), &fields[5], 1, &options, &said));
    assert_says("invalid dimension 0");
    /* With any_type it stays, and means the same. */
    writer = open_any(at("y"), fields, 1);
    assert_file(at("y/spec.json.partial"), kept, sizeof kept - 1);
    assert_ok(bags_writer_append(writer, &one, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_opens(reader, bags_reader_open(at("y"), NULL, &said));
    assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
    assert_ok(bags_row_value(&row, 0, 0, NULL, &read, &said));
    assert_int_equal(read.dtype, BAGS_DTYPE_FLOAT32);
    assert_true(*(const float *)read.data == 1.5F);
    bags_row_free(&row);
    bags_reader_close(reader);
    assert_ok(bags_encode(NULL, "float32", &number, &out, &blob, &said));
    assert_ok(bags_decode(NULL, "float32", blob, &out, &read, &said));
    bags_buffer_free(&out);
    /* A codec of that name. */
    assert_opens(codecs, bags_registry_create(&memory.allocator, &said));
    assert_ok(bags_registry_add(codecs, &own, &said));
    options.registry = codecs;
    assert_opens(writer, bags_writer_open(at("z"), fields, 1, &options, &said));
    assert_file(at("z/spec.json.partial"), kept, sizeof kept - 1);
    bags_writer_abort(writer);
    bags_registry_free(codecs);
}

/* The codec that serves "int" defines its arguments. */
static bags_code open_three(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **mine, bags_error *err) {
    (void)codec;
    (void)allocator;
    (void)mine;
    return type->count == 3 ? bags_fail(err, BAGS_ERROR_TYPE, "not three") : BAGS_OK;
}

static void a_registered_codec_has_its_own_arguments(void **state) {
    static const char *const types[] = {
        "int(0)", "int(x)", "array(float31)", "int(4,5,6)"};
    static const bags_codec own = {
        "int array", open_three, NULL, NULL, NULL, NULL, NULL};
    bags_registry *codecs = bags_registry_create(NULL, &said);
    bags_writer_options options = writing(0);
    (void)state;
    assert_ok(bags_registry_add(codecs, &own, &said));
    options.registry = codecs;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        bags_field field = {"thing", types[i]};
        bags_writer *writer;
        if (i < 3) {
            assert_opens(
                writer, bags_writer_open(at("%d", (int)i), &field, 1, &options, &said));
            assert_ok(bags_writer_close(writer, &said));
            continue;
        }
        assert_refused(
            BAGS_ERROR_TYPE, bags_writer_open(at("x"), &field, 1, &options, &said));
        assert_says("x: field \"thing\": type \"int(4,5,6)\": not three");
    }
    assert_names(at("."), "0 1 2");
    bags_registry_free(codecs);
}

/* Codecs that succeed and make nothing: `lost` states a size without data. */
static bags_code encode_idle(void *mine, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    (void)mine;
    (void)value;
    (void)scratch;
    (void)blob;
    (void)err;
    return BAGS_OK;
}

static bags_code encode_lost(void *mine, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    blob->data = NULL;
    blob->size = 5;
    return encode_idle(mine, value, scratch, blob, err);
}

static bags_code decode_idle(void *mine, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    (void)mine;
    (void)blob;
    (void)scratch;
    (void)value;
    (void)err;
    return BAGS_OK;
}

static void what_a_codec_does_not_return_is_not_invented(void **state) {
    static const bags_codec idle = {
        "idle", NULL, encode_idle, decode_idle, NULL, NULL, NULL};
    static const bags_codec lost = {
        "lost gone", NULL, encode_lost, NULL, NULL, NULL, NULL};
    static const bags_field fields[] = {{"a", "idle"}, {"b", "gone"}};
    bags_registry *codecs = bags_registry_create(NULL, &said);
    bags_writer_options options = writing(0);
    bags_buffer scratch = {0};
    bags_value text = bags_utf8("secret"), blob = bags_blob("x", 1), read;
    bags_entry entries[] = {entry("a", &text, 1), entry("b", &text, 1)};
    bags_view made;
    bags_writer *writer;
    (void)state;
    assert_ok(bags_registry_add(codecs, &idle, &said));
    assert_ok(bags_registry_add(codecs, &lost, &said));
    options.registry = codecs;
    assert_opens(writer, bags_writer_open(at("x"), fields, 2, &options, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_writer_append(writer, entries, 2, &said));
    assert_says("x: field \"b\": datapoint 0: the codec of \"lost gone\"*NULL");
    entries[1].values = &blob;
    assert_ok(bags_writer_append(writer, entries, 2, &said));
    bags_writer_clear(writer);
    assert_ok(bags_writer_close(writer, &said));
    assert_file(at("x/a.bag"), "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    assert_ok(bags_encode(codecs, "idle", &text, &scratch, &made, &said));
    assert_int_equal(made.size, 0);
    assert_fails(
        BAGS_ERROR_ARGUMENT, bags_decode(codecs, "idle", made, &scratch, &read, &said));
    assert_says("the codec of \"idle\" returned no value");
    bags_buffer_free(&scratch);
    bags_registry_free(codecs);
}

static void an_invalid_type_on_disk_is_read_as_bytes(void **state) {
    static const bags_field right[] = {{"a", "int(4)"}};
    static const char *const types[] = {"int(0)", "int(x)", "array(float31,2)"};
    bags_value value = bags_int(7);
    bags_entry one = entry("a", &value, 1);
    bags_writer *writer = open_writer(at("x"), right, 1, 0);
    (void)state;
    assert_ok(bags_writer_append(writer, &one, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        char spec[64];
        bags_reader *reader;
        bags_row row = {0};
        bags_value read;
        snprintf(spec, sizeof spec, "{\"a\": \"%s\"}", types[i]);
        save_text(at("x/spec.json"), spec);
        assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
        assert_ok(bags_reader_get(reader, 0, NULL, 0, &row, &said));
        assert_bytes(bags_row_bytes(&row, 0, 0), "\7\0\0\0", 4);
        bags_code code = bags_row_value(&row, 0, 0, NULL, &read, &said);
        assert_int_equal(code, i ? BAGS_ERROR_TYPE : BAGS_ERROR_CORRUPT);
        bags_row_free(&row);
        bags_reader_close(reader);
    }
}

/* File systems accept names of 255 bytes, and NAME.bag is one. */
static void names_that_are_too_long_are_refused(void **state) {
    static const size_t sizes[] = {252, 253, 255, 256, 399};
    char name[400];
    (void)state;
    for (size_t i = 0; i < 5; i++)
        for (int sharded = 0; sharded < 2; sharded++) {
            bags_writer_options options = writing(0);
            options.shard_stop = (uint64_t)sharded;
            memset(name, 'n', sizeof name);
            name[sizes[i]] = 0;
            bags_field fields[2] = {{"good", "utf8"}, {name, "utf8"}};
            assert_refused(BAGS_ERROR_FIELD,
                bags_writer_open(at("x"), fields, 2, &options, &said));
            assert_names(at("."), "");
        }
    name[251] = 0;
    bags_field field = {name, "utf8"};
    assert_ok(bags_writer_close(open_writer(at("x"), &field, 1, 0), &said));
    assert_true(exists(at("x/%s.bag", name)));
}

static void more_fields_than_a_spec_can_hold_are_refused(void **state) {
    const size_t count = 65536;
    bags_field *fields = (bags_field *)calloc(count, sizeof *fields);
    char(*names)[256] = (char(*)[256])calloc(count, 256);
    (void)state;
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], 256, "f%d", (int)i);
        fields[i].name = names[i];
        fields[i].type = "utf8";
    }
    poison();
    assert_null(bags_writer_open(at("x"), fields, count, NULL, &said));
    assert_true(said.code == BAGS_ERROR_LIMIT || said.code == BAGS_ERROR_FIELD);
    assert_names(at("."), "");
    for (size_t i = 0; i < 6000; i++) {
        memset(names[i], 'n', 200);
        snprintf(names[i] + 200, 56, "%d", (int)i);
    }
    poison();
    assert_null(bags_writer_open(at("x"), fields, 6000, NULL, &said));
    assert_true(said.code == BAGS_ERROR_LIMIT || said.code == BAGS_ERROR_FIELD);
    assert_names(at("."), "");
    free(names);
    free(fields);
}

/* ---- complete datapoints ---- */

static const bags_field five[] = {{"words", "utf8[]"}, {"caption", "utf8"},
    {"number", "int(2)"}, {"raw", "bytes"}, {"frames", "jpeg[]"}};
/* In the order on disk. */
enum { CAPTION, FRAMES, NUMBER, RAW, WORDS };

/* A datapoint's content, derived from a seed. */
typedef struct sample {
    size_t words, frames;
    bags_value word_values[40], frame_values[40];
    bags_value caption, number, raw;
    unsigned char *bytes;
} sample;

#define SAMPLE_BYTES 300000

static void make_sample(sample *s, uint64_t seed) {
    uint64_t random = seed;
    size_t used = 0;
    s->bytes = (unsigned char *)malloc(SAMPLE_BYTES);
    fill(s->bytes, SAMPLE_BYTES, seed);
    for (size_t i = 0; i < SAMPLE_BYTES; i++)
        s->bytes[i] &= 0x7f;
    size_t most = next_random(&random) % 9 ? 60 : 7000;
    s->words = (size_t)(next_random(&random) % 4 ? next_random(&random) % 5
                                                 : next_random(&random) % 40);
    s->frames = (size_t)(next_random(&random) % 3);
    for (size_t i = 0; i < s->words; i++) {
        size_t size = (size_t)(next_random(&random) % most);
        s->word_values[i] = bags_utf8_sized((char *)s->bytes + used, size);
        used += size;
    }
    for (size_t i = 0; i < s->frames; i++) {
        size_t size = (size_t)(next_random(&random) % (2 * most));
        s->frame_values[i] = bags_blob(s->bytes + used, size);
        used += size;
    }
    s->caption = bags_utf8_sized(
        (char *)s->bytes + 290000, (size_t)(next_random(&random) % most));
    s->number = bags_uint(next_random(&random) % 65536);
    s->raw = bags_blob(s->bytes + 291000, (size_t)(next_random(&random) % most));
}

static void sample_by_hand(const sample *s, hand_set *set) {
    unsigned char number[2];
    number[0] = (unsigned char)s->number.uint;
    number[1] = (unsigned char)(s->number.uint >> 8);
    set_begin(set);
    set_blob(set, CAPTION, s->caption.data, s->caption.size);
    put_array(&set->row, s->frames ? 2 : 0);
    if (s->frames) {
        put_uint(&set->row, hand_length(&set->bags[FRAMES]));
        put_uint(&set->row, s->frames);
    }
    for (size_t i = 0; i < s->frames; i++)
        hand_add(&set->bags[FRAMES], s->frame_values[i].data, s->frame_values[i].size);
    set_blob(set, NUMBER, number, 2);
    set_blob(set, RAW, s->raw.data, s->raw.size);
    put_array(&set->row, s->words ? 2 : 0);
    if (s->words) {
        put_uint(&set->row, hand_length(&set->bags[WORDS]));
        put_uint(&set->row, s->words);
    }
    for (size_t i = 0; i < s->words; i++)
        hand_add(&set->bags[WORDS], s->word_values[i].data, s->word_values[i].size);
    set_end(set);
}

static bags_code append_sample(bags_writer *writer, const sample *s) {
    bags_entry entries[5];
    entries[0] = entry("frames", s->frames ? s->frame_values : NULL, s->frames);
    entries[1] = entry("words", s->word_values, s->words);
    entries[2] = entry("number", &s->number, 1);
    entries[3] = entry("caption", &s->caption, 1);
    entries[4] = entry("raw", &s->raw, 1);
    return bags_writer_append(writer, entries, 5, &said);
}

static void stream_sample(bags_writer *writer, const sample *s) {
    assert_ok(bags_writer_begin(writer, &said));
    assert_ok(bags_writer_set(writer, "raw", &s->raw, &said));
    for (size_t i = 0; i < s->words || i < s->frames; i++) {
        if (i < s->words)
            assert_ok(bags_writer_push(writer, "words", &s->word_values[i], &said));
        if (i < s->frames)
            assert_ok(bags_writer_push(writer, "frames", &s->frame_values[i], &said));
        if (i == 1)
            assert_ok(bags_writer_set(writer, "caption", &s->caption, &said));
    }
    if (s->words <= 1 && s->frames <= 1)
        assert_ok(bags_writer_set(writer, "caption", &s->caption, &said));
    assert_ok(bags_writer_set(writer, "number", &s->number, &said));
    assert_ok(bags_writer_end(writer, &said));
}

static void fields_by_hand(hand_set *set) {
    set_field(set, "caption", "utf8");
    set_field(set, "frames", "jpeg[]");
    set_field(set, "number", "int(2)");
    set_field(set, "raw", "bytes");
    set_field(set, "words", "utf8[]");
}

/* Several ways to get a datapoint refused or cancelled. */
#define FAULTS 17

static bags_code append_faulty(
    bags_writer *writer, sample *s, int fault, bags_error *err) {
    bags_value bad = bags_int(-1), two[2];
    bags_entry entries[6];
    memset(entries, 0, sizeof entries);
    two[0] = s->raw;
    two[1] = s->raw;
    entries[0] = entry("frames", s->frame_values, s->frames);
    entries[1] = entry("raw", &s->raw, 1);
    entries[2] = entry("caption", &s->caption, 1);
    entries[3] = entry("number", &s->number, 1);
    entries[4] = entry("words", s->word_values, s->words);
    entries[5] = entry("raw", &s->raw, 1);
    switch (fault) {
    case 0: /* missing */
        return bags_writer_append(writer, entries, 4, err);
    case 1: /* duplicate, one entry too many */
        return bags_writer_append(writer, entries, 6, err);
    case 2: /* duplicate, another one missing */
        entries[4].field = "raw";
        return bags_writer_append(writer, entries, 5, err);
    case 3: /* unknown */
        entries[5].field = "colour";
        return bags_writer_append(writer, entries, 6, err);
    case 4:
        entries[0].field = "refs";
        return bags_writer_append(writer, entries, 5, err);
    case 5: /* a value that does not fit, after others that did */
        entries[3].values = &bad;
        return bags_writer_append(writer, entries, 5, err);
    case 6: /* the last item of a sequence is not text */
        s->word_values[s->words] = bags_utf8("\xff");
        entries[4].values = s->word_values;
        entries[4].count = s->words + 1;
        return bags_writer_append(writer, entries, 5, err);
    case 7: /* two values for a plain field */
        entries[1] = entry("raw", two, 2);
        return bags_writer_append(writer, entries, 5, err);
    case 8: /* none */
        entries[1].count = 0;
        return bags_writer_append(writer, entries, 5, err);
    default: /* no codec for the type */
        s->frame_values[s->frames] = bags_utf8("text");
        entries[0].count = s->frames + 1;
        return bags_writer_append(writer, entries, 5, err);
    }
}

static bags_code stream_faulty(bags_writer *writer, sample *s, int fault) {
    bags_value bad = bags_int(70000);
    bags_code code = BAGS_OK;
    assert_ok(bags_writer_begin(writer, &said));
    for (size_t i = 0; i < s->words; i++)
        assert_ok(bags_writer_push(writer, "words", &s->word_values[i], &said));
    for (size_t i = 0; i < s->frames; i++)
        assert_ok(bags_writer_push(writer, "frames", &s->frame_values[i], &said));
    assert_ok(bags_writer_set(writer, "raw", &s->raw, &said));
    assert_ok(bags_writer_set(writer, "caption", &s->caption, &said));
    switch (fault) {
    case 10:
        bags_writer_cancel(writer);
        return BAGS_OK;
    case 11: /* number is missing */
        return bags_writer_end(writer, &said);
    case 12:
        code = bags_writer_set(writer, "number", &bad, &said);
        break;
    case 13:
        code = bags_writer_set(writer, "raw", &s->raw, &said);
        break;
    case 14:
        code = bags_writer_set(writer, "words", &s->caption, &said);
        break;
    case 15:
        code = bags_writer_push(writer, "caption", &s->caption, &said);
        break;
    default:
        code = bags_writer_set(writer, "colour", &s->caption, &said);
        break;
    }
    assert_int_not_equal(code, BAGS_OK);
    assert_int_equal(said.code, code);
    /* The other calls do not save it. */
    bags_writer_set(writer, "number", &s->number, &said);
    poison();
    bags_code end = bags_writer_end(writer, &said);
    assert_int_equal(end, code);
    return end;
}

static bags_code expected_code(int fault) {
    switch (fault) {
    case 10:
        return BAGS_OK;
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
    case 11:
    case 13:
    case 16:
        return BAGS_ERROR_FIELD;
    case 9:
        return BAGS_ERROR_TYPE;
    default:
        return BAGS_ERROR_VALUE;
    }
}

static int fail_to_write(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    (void)user, (void)file, (void)offset, (void)data, (void)size, (void)done;
    return ENOSPC;
}

static void try_fault(bags_writer *writer, uint64_t seed, int fault) {
    sample s;
    make_sample(&s, seed);
    s.words %= 39;
    uint64_t length = bags_writer_length(writer);
    poison();
    bags_code code = fault < 10 ? append_faulty(writer, &s, fault, &said)
                                : stream_faulty(writer, &s, fault);
    /* A value for a sequence, or an item for a plain field: either code is
     * right. */
    bool open_question = fault == 14 || fault == 15;
    if (code != expected_code(fault) && !(open_question && code == BAGS_ERROR_FIELD))
        fail_msg("fault %d gives %s: %s", fault, bags_code_name(code),
            code ? said.message : "");
    if (code)
        assert_int_equal(said.code, code);
    assert_true(bags_writer_length(writer) == length);
    free(s.bytes);
}

/* Datapoints in both ways, with faults between them; the files must equal those
 * made by hand. */
static void write_and_compare(
    size_t buffer_size, uint64_t seed, bool faults, bool streamed) {
    hand_set set;
    memset(&set, 0, sizeof set);
    fields_by_hand(&set);
    bags_writer *writer = open_writer(at("x"), five, 5, buffer_size);
    for (uint64_t i = 0; i < 60; i++) {
        sample s;
        int fault = (int)((seed + i) % FAULTS);
        if (faults)
            try_fault(writer, seed * 1000 + i, fault);
        make_sample(&s, seed * 2000 + i);
        if (streamed && i % 3)
            stream_sample(writer, &s);
        else
            assert_ok(append_sample(writer, &s));
        sample_by_hand(&s, &set);
        assert_true(bags_writer_length(writer) == i + 1);
        if (i % 17 == 0)
            assert_ok(bags_writer_flush(writer, &said));
        free(s.bytes);
    }
    bags_writer_clear(writer);
    assert_ok(bags_writer_close(writer, &said));
    set_save(&set, V1, at("y"));
    assert_same_tree(at("y"), at("x"));
    remove_tree(at("x"));
    remove_tree(at("y"));
    set_free(&set);
}

static void datapoints_are_written_as_the_format_says(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        write_and_compare(0, seed, false, false);
        write_and_compare(4096, seed, false, false);
        write_and_compare(4096, seed, false, true);
    }
}

static void a_datapoint_that_was_refused_leaves_no_trace(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        write_and_compare(4096, seed, true, true);
        write_and_compare(0, seed, true, true);
        write_and_compare(20000, seed, true, false);
    }
}

/* Call a function that refuses, with an err or without, close, and expect the code of
 * the refusal, its message, and that the datapoints before and after it are stored. */
static void refuse_and_close(
    void (*refuse)(bags_writer *writer, sample *s, bags_error *err), bags_code code,
    const char *says) {
    for (int checked = 0; checked < 2; checked++) {
        sample s;
        bags_reader *reader;
        bags_writer *writer = open_writer(at("x"), five, 5, 0);
        make_sample(&s, 5);
        assert_ok(append_sample(writer, &s));
        refuse(writer, &s, checked ? &said : NULL);
        assert_ok(append_sample(writer, &s));
        assert_true(bags_writer_length(writer) == 2);
        assert_fails(code, bags_writer_close(writer, &said));
        assert_says(says);
        assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
        assert_true(bags_reader_length(reader) == 2);
        bags_reader_close(reader);
        assert_ok(bags_verify(at("x"), NULL, NULL, &said));
        remove_tree(at("x"));
        free(s.bytes);
    }
}

static int refused_fault;

static void refuse_append(bags_writer *writer, sample *s, bags_error *err) {
    assert_int_equal(
        append_faulty(writer, s, refused_fault, err), expected_code(refused_fault));
}

static void refuse_null(bags_writer *writer, sample *s, bags_error *err) {
    bags_entry none = entry(NULL, &s->raw, 1);
    assert_int_equal(bags_writer_append(writer, &none, 1, err), BAGS_ERROR_ARGUMENT);
    assert_int_equal(bags_writer_append(writer, NULL, 1, err), BAGS_ERROR_ARGUMENT);
}

static void refuse_blob_without_data(bags_writer *writer, sample *s, bags_error *err) {
    bags_value raw = s->raw;
    s->raw = bags_blob(NULL, 1);
    assert_int_equal(append_faulty(writer, s, 3, err), BAGS_ERROR_ARGUMENT);
    s->raw = raw;
}

static void refuse_again(bags_writer *writer, sample *s, bags_error *err) {
    bags_value raw = s->raw;
    s->raw = bags_stored(bags_writer_next(writer, "unknown"));
    assert_int_equal(append_faulty(writer, s, 3, err), BAGS_ERROR_RANGE);
    s->raw = raw;
}

static void refuse_set(bags_writer *writer, sample *s, bags_error *err) {
    bags_value bad = bags_int(70000);
    assert_ok(bags_writer_begin(writer, err));
    assert_int_equal(bags_writer_set(writer, "number", &bad, err), BAGS_ERROR_VALUE);
    assert_int_equal(bags_writer_set(writer, "raw", &s->raw, err), BAGS_ERROR_VALUE);
    assert_int_equal(bags_writer_end(writer, err), BAGS_ERROR_VALUE);
}

static void refuse_push_and_cancel(bags_writer *writer, sample *s, bags_error *err) {
    assert_ok(bags_writer_begin(writer, err));
    assert_int_not_equal(bags_writer_push(writer, "caption", &s->raw, err), BAGS_OK);
    bags_writer_cancel(writer);
}

static void refuse_end(bags_writer *writer, sample *s, bags_error *err) {
    assert_ok(bags_writer_begin(writer, err));
    assert_ok(bags_writer_set(writer, "raw", &s->raw, err));
    assert_int_equal(bags_writer_end(writer, err), BAGS_ERROR_FIELD);
}

static void refuse_begin(bags_writer *writer, sample *s, bags_error *err) {
    (void)s;
    assert_ok(bags_writer_begin(writer, err));
    assert_int_equal(bags_writer_begin(writer, err), BAGS_ERROR_STATE);
    bags_writer_cancel(writer);
}

static void refuse_append_within(bags_writer *writer, sample *s, bags_error *err) {
    assert_ok(bags_writer_begin(writer, err));
    assert_int_equal(append_faulty(writer, s, 0, err), BAGS_ERROR_STATE);
    bags_writer_cancel(writer);
}

static void refuse_set_without_begin(bags_writer *writer, sample *s, bags_error *err) {
    assert_int_equal(bags_writer_set(writer, "raw", &s->raw, err), BAGS_ERROR_STATE);
}

static void refuse_push_without_begin(bags_writer *writer, sample *s, bags_error *err) {
    assert_int_equal(
        bags_writer_push(writer, "words", &s->caption, err), BAGS_ERROR_STATE);
}

static void refuse_end_without_begin(bags_writer *writer, sample *s, bags_error *err) {
    (void)s;
    assert_int_equal(bags_writer_end(writer, err), BAGS_ERROR_STATE);
}

/* A program that checks only at the end must learn of it, and so must one that passed
 * an err and ignored it. */
static void close_returns_the_first_refusal_whatever_err_was_passed(void **state) {
    (void)state;
    for (refused_fault = 0; refused_fault < 10; refused_fault++)
        refuse_and_close(refuse_append, expected_code(refused_fault), "datapoint 1");
    refuse_and_close(refuse_null, BAGS_ERROR_ARGUMENT, "a field name is NULL");
    refuse_and_close(refuse_blob_without_data, BAGS_ERROR_ARGUMENT, "data is NULL");
    refuse_and_close(refuse_again, BAGS_ERROR_RANGE, "blob number out of range");
    refuse_and_close(refuse_set, BAGS_ERROR_VALUE, "number");
    refuse_and_close(refuse_push_and_cancel, BAGS_ERROR_VALUE, "caption");
    refuse_and_close(refuse_end, BAGS_ERROR_FIELD, "missing");
    refuse_and_close(refuse_begin, BAGS_ERROR_STATE, "begun and not ended");
    refuse_and_close(refuse_append_within, BAGS_ERROR_STATE, "begun and not ended");
    refuse_and_close(refuse_set_without_begin, BAGS_ERROR_STATE, "not begun");
    refuse_and_close(refuse_push_without_begin, BAGS_ERROR_STATE, "not begun");
    refuse_and_close(refuse_end_without_begin, BAGS_ERROR_STATE, "not begun");
}

/* The usual way out of a loop: close after the first failure, without end or cancel. */
static void a_datapoint_that_was_refused_is_not_one_that_was_not_ended(void **state) {
    sample s;
    bags_value bad = bags_int(70000);
    bags_reader *reader;
    (void)state;
    make_sample(&s, 5);
    bags_writer *writer = open_writer(at("x"), five, 5, 4096);
    assert_ok(append_sample(writer, &s));
    assert_ok(bags_writer_begin(writer, &said));
    for (int i = 0; i < 2000; i++)
        assert_ok(bags_writer_push(writer, "words", &s.caption, &said));
    assert_fails(BAGS_ERROR_VALUE, bags_writer_set(writer, "number", &bad, &said));
    assert_fails(BAGS_ERROR_VALUE, bags_writer_close(writer, &said));
    assert_says("number");
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    assert_true(bags_reader_length(reader) == 1);
    bags_reader_close(reader);
    writer = open_writer(at("y"), five, 5, 4096);
    assert_ok(append_sample(writer, &s));
    assert_ok(bags_writer_close(writer, &said));
    assert_same_tree(at("x"), at("y"));
    free(s.bytes);
}

static void a_refusal_that_was_cleared_is_not_returned_by_close(void **state) {
    sample s;
    (void)state;
    make_sample(&s, 5);
    bags_writer *writer = open_writer(at("x"), five, 5, 0);
    bags_writer_clear(writer);
    assert_ok(append_sample(writer, &s));
    assert_int_equal(append_faulty(writer, &s, 5, &said), BAGS_ERROR_VALUE);
    refuse_set(writer, &s, &said);
    bags_writer_clear(writer);
    assert_ok(append_sample(writer, &s));
    assert_ok(bags_writer_close(writer, &said));
    writer = open_writer(at("y"), five, 5, 0);
    assert_ok(append_sample(writer, &s));
    assert_ok(append_sample(writer, &s));
    refuse_end(writer, &s, &said);
    bags_writer_clear(writer);
    assert_int_equal(append_faulty(writer, &s, 5, &said), BAGS_ERROR_VALUE);
    assert_fails(BAGS_ERROR_VALUE, bags_writer_close(writer, &said)); /* a new one */
    assert_same_tree(at("x"), at("y"));
    free(s.bytes);
}

/* Then the shard is unfinished, which is worse, and is what close returns. */
static void a_failure_of_the_system_is_not_cleared(void **state) {
    sample s;
    bags_io full = disk.io;
    bags_writer_options options = writing(0);
    bags_writer *writer;
    (void)state;
    make_sample(&s, 5);
    full.write_at = fail_to_write;
    options.env.io = &full;
    options.shard_stop = 1; /* so that nothing is written when it is opened */
    for (int how = 0; how < 2; how++) {
        assert_opens(writer, bags_writer_open(at("%d", how), five, 5, &options, &said));
        if (how)
            assert_fails(BAGS_ERROR_STATE, bags_writer_end(writer, &said));
        assert_fails(BAGS_ERROR_IO, append_sample(writer, &s));
        bags_writer_clear(writer);
        assert_fails(BAGS_ERROR_IO, append_sample(writer, &s));
        assert_fails(BAGS_ERROR_IO, bags_writer_close(writer, &said));
    }
    free(s.bytes);
}

/* Far more than any buffer holds is written before the datapoint fails; then it
 * must be removed. */
static void a_long_sequence_that_was_dropped_leaves_no_trace(void **state) {
    static const bags_field fields[] = {
        {"a", "bytes[]"}, {"b", "utf8[]"}, {"c", "bytes"}};
    static const size_t buffers[] = {4096, 65536, 0};
    unsigned char *data = (unsigned char *)malloc(70000);
    (void)state;
    fill(data, 70000, 9);
    for (size_t round = 0; round < 3; round++)
        for (int how = 0; how < 4; how++) {
            hand_set set;
            bags_value item, bad = bags_utf8("\xff"), plain;
            memset(&set, 0, sizeof set);
            for (size_t i = 0; i < 3; i++)
                set_field(&set, fields[i].name, fields[i].type);
            plain = bags_blob("plain", 5);
            bags_writer *writer = open_writer(at("x"), fields, 3, buffers[round]);
            for (int point = 0; point < 4; point++) {
                bool drop = point == 0 || point == 2;
                if (!drop)
                    set_begin(&set);
                assert_ok(bags_writer_begin(writer, &said));
                if (point > 1)
                    assert_ok(bags_writer_set(writer, "c", &plain, &said));
                size_t items = drop ? 120 : 10;
                if (!drop) {
                    put_array(&set.row, 2);
                    put_uint(&set.row, hand_length(&set.bags[0]));
                    put_uint(&set.row, items);
                }
                for (size_t i = 0; i < items; i++) {
                    item = bags_blob(data, 70000 - i * 500);
                    assert_ok(bags_writer_push(writer, "a", &item, &said));
                    if (!drop)
                        hand_add(&set.bags[0], item.data, item.size);
                    item = bags_utf8("word");
                    assert_ok(bags_writer_push(writer, "b", &item, &said));
                }
                if (drop && how == 0) {
                    bags_writer_cancel(writer);
                } else if (drop && how == 1) {
                    assert_fails(
                        BAGS_ERROR_VALUE, bags_writer_push(writer, "b", &bad, &said));
                    assert_fails(BAGS_ERROR_VALUE, bags_writer_end(writer, &said));
                } else if (drop && how == 2) {
                    assert_fails(
                        BAGS_ERROR_FIELD, bags_writer_push(writer, "d", &item, &said));
                    bags_writer_cancel(writer);
                } else if (drop) {
                    assert_fails(
                        BAGS_ERROR_VALUE, bags_writer_push(writer, "b", &bad, &said));
                    assert_fails(BAGS_ERROR_VALUE, bags_writer_end(writer, &said));
                    assert_ok(bags_writer_flush(writer, &said));
                } else {
                    put_array(&set.row, 2);
                    put_uint(&set.row, hand_length(&set.bags[1]));
                    put_uint(&set.row, items);
                    for (size_t i = 0; i < items; i++)
                        hand_add(&set.bags[1], "word", 4);
                    set_blob(&set, 2, "plain", 5);
                    set_end(&set);
                    if (point <= 1)
                        assert_ok(bags_writer_set(writer, "c", &plain, &said));
                    assert_ok(bags_writer_end(writer, &said));
                }
            }
            bags_writer_clear(writer);
            assert_ok(bags_writer_close(writer, &said));
            set_save(&set, V1, at("y"));
            assert_same_tree(at("y"), at("x"));
            remove_tree(at("x"));
            remove_tree(at("y"));
            set_free(&set);
        }
    free(data);
}

static void memory_does_not_grow_with_a_streamed_sequence(void **state) {
    static const bags_field field = {"a", "bytes[]"};
    unsigned char data[1000];
    (void)state;
    fill(data, sizeof data, 1);
    bags_writer *writer = open_writer(at("x"), &field, 1, 4096);
    bags_value item = bags_blob(data, sizeof data);
    assert_ok(bags_writer_begin(writer, &said));
    assert_ok(bags_writer_push(writer, "a", &item, &said));
    uint64_t used = memory.used;
    for (int i = 1; i < 20000; i++)
        assert_ok(bags_writer_push(writer, "a", &item, &said));
    assert_true(memory.used <= used + 4096);
    assert_ok(bags_writer_end(writer, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_true(memory.peak < 300000);
    assert_true(file_size(at("x/a.bag")) == 20000 * 1008 + 8);
}

static void a_datapoint_without_fields_is_written(void **state) {
    (void)state;
    bags_writer *writer = open_writer(at("x"), NULL, 0, 0);
    assert_ok(bags_writer_append(writer, NULL, 0, &said));
    assert_ok(bags_writer_begin(writer, &said));
    assert_ok(bags_writer_end(writer, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_names(at("x"), "refs.bag spec.json");
    assert_file(at("x/spec.json"), "{}", 2);
    assert_file(at("x/refs.bag"),
        "\x90\x90\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"
        "\x02\0\0\0\0\0\0\0",
        26);
}

static void encoded_blobs_are_stored_whatever_the_type(void **state) {
    static const bags_field fields[] = {{"a", "int(4)"}, {"b", "utf8"}, {"c", "jpeg"},
        {"d", "array(float32,2)"}, {"e", "nobody-knows(1,2)"}};
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    bags_entry entries[5];
    bags_value blob = bags_blob("\xff\0z", 3), text = bags_utf8("t");
    (void)state;
    bags_writer *writer = open_any(at("x"), fields, 5);
    for (size_t i = 0; i < 5; i++)
        entries[i] = entry(names[i], &blob, 1);
    assert_ok(bags_writer_append(writer, entries, 5, &said));
    entries[4].values = &text;
    assert_fails(BAGS_ERROR_TYPE, bags_writer_append(writer, entries, 5, &said));
    assert_says("nobody-knows");
    assert_says("\"e\"");
    bags_writer_clear(writer);
    assert_ok(bags_writer_close(writer, &said));
    for (size_t i = 0; i < 5; i++)
        assert_file(
            at("x/%s.bag", names[i]), "\xff\0z\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0", 19);
}

/* A known codec with arguments that it does not accept. */
static void a_value_of_kind_none_is_refused(void **state) {
    static const bags_field fields[] = {{"a", "bytes"}};
    bags_value value = bags_int(0);
    bags_entry one = entry("a", &value, 1);
    (void)state;
    value.kind = BAGS_KIND_NONE;
    bags_writer *writer = open_writer(at("x"), fields, 1, 0);
    assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, &one, 1, &said));
    value.kind = (bags_kind)99;
    assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, &one, 1, &said));
    bags_writer_abort(writer);
}

/* ---- out of order ---- */

static void calls_out_of_order_are_state_errors(void **state) {
    sample s;
    (void)state;
    make_sample(&s, 1);
    bags_writer *writer = open_writer(at("x"), five, 5, 0);
    assert_fails(BAGS_ERROR_STATE, bags_writer_set(writer, "raw", &s.raw, &said));
    assert_fails(
        BAGS_ERROR_STATE, bags_writer_push(writer, "words", &s.caption, &said));
    assert_fails(BAGS_ERROR_STATE, bags_writer_end(writer, &said));
    bags_writer_cancel(writer);
    assert_ok(append_sample(writer, &s));
    assert_ok(bags_writer_begin(writer, &said));
    assert_fails(BAGS_ERROR_STATE, bags_writer_begin(writer, &said));
    bags_writer_cancel(writer);
    assert_ok(bags_writer_begin(writer, &said));
    assert_fails(BAGS_ERROR_STATE, append_sample(writer, &s));
    bags_writer_cancel(writer);
    bags_writer_cancel(writer);
    assert_ok(append_sample(writer, &s));
    assert_true(bags_writer_length(writer) == 2);
    bags_writer_clear(writer);
    assert_ok(bags_writer_close(writer, &said));
    free(s.bytes);
}

/* Otherwise the first would be stored with the items of both. */
static void a_begin_without_an_end_refuses_both_datapoints(void **state) {
    bags_field field = {"words", "utf8[]"};
    bags_value word = bags_utf8("a");
    (void)state;
    for (int checked = 0; checked < 2; checked++) {
        bags_error *err = checked ? &said : NULL;
        bags_writer *writer = open_writer(at("%d", checked), &field, 1, 0);
        assert_ok(bags_writer_begin(writer, err));
        assert_ok(bags_writer_push(writer, "words", &word, err));
        assert_int_equal(bags_writer_begin(writer, err), BAGS_ERROR_STATE);
        assert_int_equal(
            bags_writer_push(writer, "words", &word, err), BAGS_ERROR_STATE);
        assert_fails(BAGS_ERROR_STATE, bags_writer_end(writer, &said));
        assert_says("datapoint 0: begun again");
        assert_true(bags_writer_length(writer) == 0);
        assert_fails(BAGS_ERROR_STATE, bags_writer_close(writer, &said));
        assert_says("begun and not ended");
    }
}

/* So that a program may check only at the end. */
static void calls_on_a_writer_that_did_not_open_fail(void **state) {
    bags_value value = bags_int(1);
    bags_entry one = entry("a", &value, 1);
    (void)state;
    assert_int_not_equal(bags_writer_append(NULL, &one, 1, NULL), BAGS_OK);
    assert_int_not_equal(bags_writer_begin(NULL, NULL), BAGS_OK);
    assert_int_not_equal(bags_writer_set(NULL, "a", &value, NULL), BAGS_OK);
    assert_int_not_equal(bags_writer_push(NULL, "a", &value, NULL), BAGS_OK);
    assert_int_not_equal(bags_writer_end(NULL, NULL), BAGS_OK);
    assert_int_not_equal(bags_writer_flush(NULL, NULL), BAGS_OK);
    bags_writer_cancel(NULL);
    bags_writer_clear(NULL);
    bag_writer_clear(NULL);
    assert_true(bags_writer_length(NULL) == 0);
    assert_true(bags_writer_shards(NULL) == 0);
}

static bags_code silent_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    (void)state;
    (void)value;
    (void)scratch;
    (void)blob;
    (void)err;
    return BAGS_ERROR_VALUE;
}

static void a_codec_that_fails_without_a_message_does_no_harm(void **state) {
    bags_codec silent = {"utf8", NULL, silent_encode, NULL, NULL, NULL, NULL};
    static const bags_field fields[] = {{"caption", "utf8"}};
    bags_writer_options options = writing(0);
    bags_value value = bags_utf8("text");
    bags_entry one = entry("caption", &value, 1);
    bags_registry *codecs;
    bags_writer *writer;
    (void)state;
    assert_opens(codecs, bags_registry_create(&memory.allocator, &said));
    assert_ok(bags_registry_add(codecs, &silent, &said));
    options.registry = codecs;
    assert_opens(writer, bags_writer_open(at("x"), fields, 1, &options, &said));
    assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, &one, 1, &said));
    assert_says("caption");
    assert_in_range(strlen(said.message), 5, 300);
    assert_fails(BAGS_ERROR_VALUE, bags_writer_close(writer, &said));
    bags_registry_free(codecs);
}

static void a_datapoint_that_was_not_ended_is_not_written(void **state) {
    sample s;
    bags_recover_options drop;
    (void)state;
    make_sample(&s, 1);
    for (int how = 0; how < 2; how++) {
        bags_writer *writer = open_writer(at("%d", how), five, 5, 4096);
        assert_ok(append_sample(writer, &s));
        assert_ok(bags_writer_begin(writer, &said));
        for (int i = 0; i < 500; i++)
            assert_ok(bags_writer_push(writer, "words", &s.caption, &said));
        if (how)
            assert_ok(bags_writer_flush(writer, &said));
        assert_fails(BAGS_ERROR_STATE, bags_writer_close(writer, &said));
        assert_says("datapoint 1: begun and not ended");
        if (how) /* what was flushed is not dropped unasked */
            assert_fails(
                BAGS_ERROR_UNFINISHED, bags_recover(at("%d", how), NULL, NULL, &said));
        memset(&drop, 0, sizeof drop);
        drop.drop_partial = how;
        assert_ok(bags_recover(at("%d", how), &drop, NULL, &said));
    }
    bags_writer *writer = open_writer(at("y"), five, 5, 4096);
    assert_ok(append_sample(writer, &s));
    assert_ok(bags_writer_close(writer, &said));
    assert_same_tree(at("y"), at("0"));
    assert_same_tree(at("y"), at("1"));
    free(s.bytes);
}

static void closing_and_aborting_null_is_allowed(void **state) {
    (void)state;
    assert_ok(bags_writer_close(NULL, &said));
    assert_int_equal(bags_writer_close(NULL, NULL), BAGS_OK);
    bags_writer_abort(NULL);
}

/* ---- while it is being written ---- */

static void an_unfinished_dataset_has_a_partial_spec_and_journals(void **state) {
    static const bags_field fields[] = {{"b", "utf8"}, {"a", "utf8[]"}};
    bags_value text = bags_utf8("text");
    bags_entry entries[2];
    const bags_io *io = bags_io_local();
    (void)state;
    bags_writer *writer = open_writer(at("x"), fields, 2, 0);
    assert_names(at("x"), "a.bag a.idx b.bag b.idx refs.bag refs.idx "
                          "spec.json.partial");
    void *file;
    assert_int_equal(
        io->open(io->user, at("x/spec.json.partial"), BAGS_IO_WRITE, &file), 0);
    assert_int_equal(io->lock(io->user, file), EWOULDBLOCK);
    io->close(io->user, file);
    assert_refused(BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), NULL, &said));
    assert_says("x: unfinished (no spec.json): its writer is running");
    assert_refused(
        BAGS_ERROR_EXISTS, bags_writer_open(at("x"), fields, 2, NULL, &said));
    assert_says(
        "x: already exists, unfinished; set BAGS_EXISTING_RESUME to continue it");
    entries[0] = entry("a", &text, 1);
    entries[1] = entry("b", &text, 1);
    for (int i = 0; i < 3; i++)
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    assert_ok(bags_writer_flush(writer, &said));
    assert_file(at("x/a.bag"), "texttexttext", 12);
    assert_file(at("x/b.idx"),
        "\x04\0\0\0\0\0\0\0\x08\0\0\0\0\0\0\0"
        "\x0c\0\0\0\0\0\0\0",
        24);
    assert_file(at("x/refs.bag"),
        "\x92\x92\x00\x01\x00\x92\x92\x01\x01\x01"
        "\x92\x92\x02\x01\x02",
        15);
    assert_true(file_size(at("x/refs.idx")) == 24);
    assert_refused(BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), NULL, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_names(at("x"), "a.bag b.bag refs.bag spec.json");
}

static void abort_removes_the_dataset(void **state) {
    sample s;
    (void)state;
    make_sample(&s, 3);
    bags_writer *writer = open_writer(at("x"), five, 5, 4096);
    for (int i = 0; i < 100; i++)
        assert_ok(append_sample(writer, &s));
    assert_ok(bags_writer_begin(writer, &said));
    bags_writer_abort(writer);
    assert_names(at("."), "");
    bags_writer_abort(open_writer(at("x"), five, 5, 0));
    assert_names(at("."), "");
    free(s.bytes);
}

static void abort_keeps_files_that_no_writer_creates(void **state) {
    (void)state;
    bags_writer *writer = open_writer(at("x"), five, 5, 0);
    save_text(at("x/notes.txt"), "mine");
    make_dir(at("x/sub"));
    bags_writer_abort(writer);
    assert_names(at("x"), "notes.txt sub");
    assert_file(at("x/notes.txt"), "mine", 4);
}

static void an_empty_dataset_has_a_spec_and_empty_bags(void **state) {
    (void)state;
    bags_writer *writer = open_writer(at("a/b/x"), five, 5, 0);
    assert_true(bags_writer_length(writer) == 0);
    assert_ok(bags_writer_flush(writer, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_names(at("a/b/x"), "caption.bag frames.bag number.bag raw.bag "
                              "refs.bag spec.json words.bag");
    assert_file(at("a/b/x/raw.bag"), "\0\0\0\0\0\0\0\0", 8);
    assert_file(at("a/b/x/refs.bag"), "\0\0\0\0\0\0\0\0", 8);
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(at("a/b/x"), NULL, &said));
    assert_true(bags_reader_length(reader) == 0);
    assert_true(shard_count(reader) == 1);
    bags_reader_close(reader);
}

static void existing_files_are_left_alone(void **state) {
    (void)state;
    save_text(at("file"), "precious");
    make_dir(at("empty"));
    make_dir(at("full"));
    save_text(at("full/x.bag"), "precious");
    assert_refused(
        BAGS_ERROR_EXISTS, bags_writer_open(at("file"), five, 5, NULL, &said));
    assert_refused(
        BAGS_ERROR_EXISTS, bags_writer_open(at("empty"), five, 5, NULL, &said));
    assert_says("empty");
    assert_refused(
        BAGS_ERROR_EXISTS, bags_writer_open(at("full/"), five, 5, NULL, &said));
    assert_null(bags_writer_open(at("file/x"), five, 5, NULL, &said));
    assert_null(bags_writer_open("", five, 5, NULL, &said));
    assert_names(at("."), "empty file full");
    assert_names(at("empty"), "");
    assert_names(at("full"), "x.bag");
    assert_file(at("file"), "precious", 8);
}

static void a_writer_keeps_journals_on_request(void **state) {
    static const bags_field fields[] = {{"a", "utf8"}, {"b", "utf8"}};
    bags_writer_options options = writing(0);
    bags_value text = bags_utf8("abc"), other = bags_utf8("");
    bags_entry entries[2];
    bags_writer *writer;
    (void)state;
    options.keep_idx = true;
    assert_opens(writer, bags_writer_open(at("x"), fields, 2, &options, &said));
    entries[0] = entry("a", &text, 1);
    entries[1] = entry("b", &other, 1);
    for (int i = 0; i < 3; i++)
        assert_ok(bags_writer_append(writer, entries, 2, &said));
    assert_ok(bags_writer_close(writer, &said));
    char *names = names_in(at("x"));
    assert_non_null(strstr(names, "a.bag a.idx b.bag b.idx refs.bag"));
    free(names);
    bytes idx = load(at("x/a.idx"));
    assert_int_equal(idx.size, 24);
    assert_true(load_u64(idx.data + 16) == 9);
    bytes_free(&idx);
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    assert_true(bags_reader_length(reader) == 3);
    bags_reader_close(reader);
    assert_ok(bags_verify(at("x"), NULL, NULL, &said));
}

static void a_dataset_is_synced_unless_no_sync_is_set(void **state) {
    sample s;
    (void)state;
    make_sample(&s, 3);
    for (int round = 0; round < 2; round++) {
        bags_writer_options options = writing(0);
        bags_writer *writer;
        options.no_sync = round == 1;
        uint64_t syncs = disk.counts[HOOK_SYNC];
        uint64_t dirs = disk.counts[HOOK_SYNC_DIR];
        assert_opens(
            writer, bags_writer_open(at("%d", round), five, 5, &options, &said));
        assert_ok(append_sample(writer, &s));
        assert_ok(bags_writer_close(writer, &said));
        /* five fields, refs and the spec */
        if (round == 0)
            assert_true(disk.counts[HOOK_SYNC] - syncs >= 7 &&
                        disk.counts[HOOK_SYNC_DIR] > dirs);
        else
            assert_true(disk.counts[HOOK_SYNC] == syncs);
    }
    free(s.bytes);
}

static uint64_t sent_from[8];
static size_t sent;

static int note_sent(void *user, void *file, uint64_t offset, uint64_t size) {
    (void)user, (void)file, (void)size;
    if (sent < 8)
        sent_from[sent++] = offset;
    return 0;
}

static bags_code push_blobs(bags_writer *writer, const bags_value *blob, int count) {
    bags_code code = bags_writer_begin(writer, &said);
    for (int i = 0; i < count && !code; i++)
        code = bags_writer_push(writer, "a", blob, &said);
    return code;
}

/* Otherwise what overwrites it would wait for the end. */
static void bytes_after_a_cancelled_datapoint_start_to_reach_the_disk_again(
    void **state) {
    static const bags_field field = {"a", "bytes[]"};
    bags_writer_options options = writing(0);
    size_t size = (size_t)1 << 20;
    char *zeros = (char *)calloc(1, size);
    bags_io io = disk.io;
    bags_writer *writer;
    (void)state;
    assert_non_null(zeros);
    bags_value blob = bags_bytes(zeros, size);
    io.write_back = note_sent;
    options.env.io = &io;
    options.no_sync = false;
    sent = 0;
    assert_opens(writer, bags_writer_open(at("x"), &field, 1, &options, &said));
    assert_ok(push_blobs(writer, &blob, 20));
    bags_writer_cancel(writer);
    assert_true(sent == 1 && sent_from[0] == 0);
    assert_ok(push_blobs(writer, &blob, 40));
    assert_ok(bags_writer_end(writer, &said));
    assert_true(sent == 3 && sent_from[1] == 0 && sent_from[2] > 0);
    assert_ok(bags_writer_close(writer, &said));
    free(zeros);
}

/* ---- system failures ---- */

static void a_system_failure_is_final_and_leaves_no_spec(void **state) {
    sample s;
    (void)state;
    make_sample(&s, 11);
    bags_writer *writer = open_writer(at("x"), five, 5, 4096);
    for (int i = 0; i < 20; i++)
        assert_ok(append_sample(writer, &s));
    disk.only = 1u << HOOK_WRITE;
    disk.fail_at = disk.calls + 1;
    disk.fail_with = ENOSPC;
    bags_code code = BAGS_OK;
    for (int i = 0; i < 5000 && !code; i++)
        code = append_sample(writer, &s);
    assert_int_equal(code, BAGS_ERROR_IO);
    assert_int_equal(said.system, ENOSPC);
    for (int i = 0; i < 2; i++) {
        assert_fails(BAGS_ERROR_IO, append_sample(writer, &s));
        assert_int_equal(said.system, ENOSPC);
        assert_fails(BAGS_ERROR_IO, bags_writer_begin(writer, &said));
        assert_fails(BAGS_ERROR_IO, bags_writer_flush(writer, &said));
    }
    assert_fails(BAGS_ERROR_IO, bags_writer_close(writer, &said));
    assert_int_equal(said.system, ENOSPC);
    assert_true(exists(at("x/spec.json.partial")));
    assert_false(exists(at("x/spec.json")));
    assert_refused(BAGS_ERROR_UNFINISHED, bags_reader_open(at("x"), NULL, &said));
    free(s.bytes);
}

/* ---- registered codecs ---- */

typedef struct counter {
    int opened, closed, encoded, fail_at;
} counter;

static bags_code count_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    counter *c = (counter *)codec->user;
    (void)allocator;
    if (bags_type_argument(type, 0).size == 3)
        return bags_fail(err, BAGS_ERROR_TYPE, "no argument of three letters");
    c->opened++;
    *state = c;
    return BAGS_OK;
}

static bags_code count_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    counter *c = (counter *)state;
    size_t size = (size_t)value->uint;
    if (++c->encoded == c->fail_at)
        return bags_fail(err, BAGS_ERROR_VALUE, "this one I do not like");
    bags_code code = bags_buffer_reserve(scratch, size + 1, err);
    if (code)
        return code;
    memset(scratch->data, 'x', size);
    blob->data = scratch->data;
    blob->size = size;
    return BAGS_OK;
}

static void count_close(void *state) { ((counter *)state)->closed++; }

static void registered_codecs_are_opened_used_and_closed(void **state) {
    static const bags_field fields[] = {
        {"caption", "many(1)[]"}, {"b", "many"}, {"c", "utf8"}};
    counter c;
    bags_codec codec = {
        "one many", count_open, count_encode, NULL, count_close, NULL, NULL};
    bags_value numbers[5], one = bags_uint(7), text = bags_utf8("t");
    bags_entry entries[3];
    bags_registry *codecs;
    bags_writer *writer;
    bags_writer_options options = writing(4096);
    (void)state;
    memset(&c, 0, sizeof c);
    codec.user = &c;
    for (size_t i = 0; i < 5; i++)
        numbers[i] = bags_uint(5000 * i);
    entries[0] = entry("c", &text, 1);
    entries[1] = entry("b", &one, 1);
    entries[2] = entry("caption", numbers, 5);
    assert_opens(codecs, bags_registry_create(&memory.allocator, &said));
    assert_ok(bags_registry_add(codecs, &codec, &said));
    options.registry = codecs;
    assert_opens(writer, bags_writer_open(at("x"), fields, 3, &options, &said));
    assert_ok(bags_writer_append(writer, entries, 3, &said));
    assert_int_equal(c.encoded, 6);
    for (int k = 1; k <= 6; k++) {
        c.fail_at = c.encoded + k;
        assert_fails(BAGS_ERROR_VALUE, bags_writer_append(writer, entries, 3, &said));
        assert_says("this one I do not like");
        if (k == 6)
            c.fail_at = 0;
    }
    assert_ok(bags_writer_append(writer, entries, 3, &said));
    bags_writer_clear(writer);
    assert_ok(bags_writer_close(writer, &said));
    assert_int_equal(c.opened, c.closed);
    assert_true(c.opened >= 2);
    /* 2 datapoints of 0 + 5000 + 10000 + 15000 + 20000 bytes in 5 blobs */
    assert_true(file_size(at("x/caption.bag")) == 100000 + 11 * 8);
    bags_field wrong = {"caption", "many(abc)"};
    poison();
    writer = bags_writer_open(at("y"), &wrong, 1, &options, &said);
    if (writer) {
        bags_entry only = entry("caption", &one, 1);
        assert_fails(BAGS_ERROR_TYPE, bags_writer_append(writer, &only, 1, &said));
        bags_writer_abort(writer);
    }
    assert_int_equal(said.code, BAGS_ERROR_TYPE);
    assert_says("caption");
    assert_says("three letters");
    assert_int_equal(c.opened, c.closed);
    bags_registry_free(codecs);
}

static void arguments_may_be_freed_after_the_call(void **state) {
    char name[16], type[16], text[32], path[4096];
    bags_field field;
    bags_value value;
    bags_entry one;
    (void)state;
    strcpy(name, "a");
    strcpy(type, "utf8[]");
    snprintf(path, sizeof path, "%s", at("x"));
    field.name = name;
    field.type = type;
    bags_writer_options options = writing(4096);
    bags_writer *writer;
    assert_opens(writer, bags_writer_open(path, &field, 1, &options, &said));
    memset(name, 'z', 15);
    memset(type, 'z', 15);
    memset(path, 'z', 15);
    memset(&options, 0xee, sizeof options);
    for (int i = 0; i < 5; i++) {
        snprintf(text, sizeof text, "text %d", i);
        value = bags_utf8(text);
        one = entry("a", &value, 1);
        assert_ok(bags_writer_append(writer, &one, 1, &said));
        memset(text, 'z', sizeof text);
        memset(&value, 0xee, sizeof value);
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_file(at("x/spec.json"), "{\"a\": \"utf8[]\"}", 15);
    bytes file = load(at("x/a.bag"));
    assert_memory_equal(file.data, "text 0text 1text 2text 3text 4", 30);
    bytes_free(&file);
}

static int locks_refused;

static int lock_later(void *user, void *file) {
    return locks_refused-- > 0 ? EWOULDBLOCK : bags_io_local()->lock(user, file);
}

/* A recovery checked the shard before its record was locked. */
static void a_disturbed_claim_is_repeated(void **state) {
    static const bags_field field = {"a", "int"};
    bags_io io = *bags_io_local();
    bags_writer_options options = writing(0);
    bags_value value = bags_int(1);
    bags_entry datapoint = entry("a", &value, 1);
    bags_writer *writer;
    (void)state;
    io.lock = lock_later;
    options.env.io = &io;
    options.shard_stop = 1;
    locks_refused = 2;
    assert_opens(writer, bags_writer_open(at("x"), &field, 1, &options, &said));
    for (int i = 0; i < 3; i++)
        assert_ok(bags_writer_append(writer, &datapoint, 1, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_names(at("x"), "000000");
}

static int rename_never(void *user, const char *from, const char *to) {
    (void)user;
    (void)from;
    (void)to;
    return EIO;
}

/* The Bags were finished and closed, but the record could not be. */
static void abort_after_a_failed_commit_removes_the_shard(void **state) {
    static const bags_field field = {"a", "int"};
    bags_io io = *bags_io_local();
    bags_writer_options options = writing(0);
    bags_value value = bags_int(1);
    bags_entry datapoint = entry("a", &value, 1);
    bags_writer *writer;
    (void)state;
    io.rename = rename_never;
    options.env.io = &io;
    options.shard_length = 2;
    assert_opens(writer, bags_writer_open(at("x"), &field, 1, &options, &said));
    assert_ok(bags_writer_append(writer, &datapoint, 1, &said));
    assert_fails(BAGS_ERROR_IO, bags_writer_append(writer, &datapoint, 1, &said));
    bags_writer_abort(writer);
    assert_names(at("."), "");
}

static void an_empty_path_is_an_argument_error(void **state) {
    static const bags_field field = {"a", "int"};
    bags_writer_options options = writing(0);
    (void)state;
    assert_refused(
        BAGS_ERROR_ARGUMENT, bags_writer_open("", &field, 1, &options, &said));
    options.shard_stop = 1;
    assert_refused(
        BAGS_ERROR_ARGUMENT, bags_writer_open("", &field, 1, &options, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_recover("", NULL, NULL, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_finalize("", NULL, NULL, &said));
}

/* In a row of a range the items are datapoints. */
static void an_undecodable_value_of_a_range_names_its_datapoint(void **state) {
    static const bags_field field = {"a", "utf8"};
    bags_row row = {0};
    bags_reader *reader;
    bags_value value;
    (void)state;
    bags_writer *writer = open_writer(at("x"), &field, 1, 0);
    for (int i = 0; i < 20; i++) {
        bags_value blob = bags_blob(i == 13 ? "\xff" : "a", 1);
        bags_entry datapoint = entry("a", &blob, 1);
        assert_ok(bags_writer_append(writer, &datapoint, 1, &said));
    }
    assert_ok(bags_writer_close(writer, &said));
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    assert_ok(bags_reader_get_range(reader, 10, 20, 0, &row, &said));
    assert_ok(bags_row_value(&row, 0, 2, NULL, &value, &said));
    assert_fails(BAGS_ERROR_CORRUPT, bags_row_value(&row, 0, 3, NULL, &value, &said));
    assert_says("datapoint 13");
    bags_row_free(&row);
    bags_reader_close(reader);
}

/* ---- which files and directories are synced, and when ---- */

/* A file of `noted`, whose calls note what is synced and removed. */
typedef struct noted_file {
    void *file;
    char path[400];
} noted_file;

static char notes[8192];
static const char *close_fails; /* part of the path; NULL: none */
static int closes_failed;

static void note(const char *what, const char *path) {
    size_t used = strlen(notes);
    snprintf(notes + used, sizeof notes - used, "%s %s\n", what, path);
}

static int noted_open(void *user, const char *path, int mode, void **file) {
    noted_file *made = (noted_file *)calloc(1, sizeof *made);
    assert_non_null(made);
    int error = disk.io.open(user, path, mode, &made->file);
    snprintf(made->path, sizeof made->path, "%s", path);
    *file = made;
    if (error)
        free(made);
    return error;
}

static int noted_close(void *user, void *file) {
    noted_file *f = (noted_file *)file;
    int error = disk.io.close(user, f->file);
    if (close_fails && strstr(f->path, close_fails)) {
        closes_failed++;
        error = EIO;
    }
    free(f);
    return error;
}

static int noted_size(void *user, void *file, uint64_t *size) {
    return disk.io.size(user, ((noted_file *)file)->file, size);
}

static int noted_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    return disk.io.read_at(user, ((noted_file *)file)->file, offset, data, size, done);
}

static int noted_write(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    return disk.io.write_at(user, ((noted_file *)file)->file, offset, data, size, done);
}

static int noted_truncate(void *user, void *file, uint64_t size) {
    return disk.io.truncate(user, ((noted_file *)file)->file, size);
}

static int noted_sync(void *user, void *file) {
    note("sync", ((noted_file *)file)->path);
    return disk.io.sync(user, ((noted_file *)file)->file);
}

static int noted_lock(void *user, void *file) {
    return disk.io.lock(user, ((noted_file *)file)->file);
}

static int noted_sync_dir(void *user, const char *path) {
    note("sync_dir", path);
    return disk.io.sync_dir(user, path);
}

static int noted_remove(void *user, const char *path) {
    note("remove", path);
    return disk.io.remove(user, path);
}

static bags_io noting(void) {
    bags_io io = disk.io;
    io.open = noted_open;
    io.close = noted_close;
    io.size = noted_size;
    io.read_at = noted_read;
    io.write_at = noted_write;
    io.truncate = noted_truncate;
    io.sync = noted_sync;
    io.lock = noted_lock;
    io.sync_dir = noted_sync_dir;
    io.remove = noted_remove;
    io.map = NULL;
    io.unmap = NULL;
    io.reserve = NULL;
    io.advise = NULL;
    io.write_back = NULL;
    io.identify = NULL;
    notes[0] = 0;
    close_fails = NULL;
    closes_failed = 0;
    return io;
}

/* Where this was noted; the test fails if it was not. */
static const char *noted(const char *what, const char *path) {
    char line[500];
    snprintf(line, sizeof line, "%s %s\n", what, path);
    const char *found = strstr(notes, line);
    if (!found)
        fail_msg("no \"%s %s\" in:\n%s", what, path, notes);
    return found;
}

/* Otherwise the blobs that were synced have neither table nor journal after a
 * power failure. */
static void close_syncs_a_bag_that_was_synced_before(void **state) {
    bag_writer_options options;
    bags_io io = noting();
    bag_writer *writer;
    (void)state;
    memset(&options, 0, sizeof options);
    options.no_sync = true;
    options.env.io = &io;
    assert_opens(writer, bag_writer_open(at("x.bag"), &options, &said));
    assert_ok(bag_writer_append(writer, "x", 1, NULL, &said));
    assert_ok(bag_writer_sync(writer, &said));
    notes[0] = 0;
    assert_ok(bag_writer_append(writer, "y", 1, NULL, &said));
    assert_ok(bag_writer_close(writer, &said));
    assert_true(noted("sync", at("x.bag")) < noted("remove", at("x.idx")));
}

static void the_directory_of_a_bag_without_a_name_is_synced(void **state) {
    bag_writer_options options;
    bags_io io = noting();
    bag_writer *writer;
    (void)state;
    memset(&options, 0, sizeof options);
    options.env.io = &io;
    make_dir(at("dir"));
    assert_opens(writer, bag_writer_open(at("dir/.bag"), &options, &said));
    assert_ok(bag_writer_append(writer, "x", 1, NULL, &said));
    assert_ok(bag_writer_close(writer, &said));
    noted("sync_dir", at("dir"));
    assert_null(strstr(notes, "sync_dir .\n"));
}

static const bags_field number = {"a", "int"};

static void append_numbers(bags_writer *writer, int count) {
    bags_value value = bags_int(1);
    bags_entry datapoint = entry("a", &value, 1);
    for (int i = 0; i < count; i++)
        assert_ok(bags_writer_append(writer, &datapoint, 1, &said));
}

static void new_parents_are_synced_at_once(void **state) {
    bags_io io = noting();
    bags_writer_options options = writing(0);
    bags_writer *writer;
    (void)state;
    options.env.io = &io;
    options.shard_length = 2;
    assert_opens(writer, bags_writer_open(at("x/y/set"), &number, 1, &options, &said));
    append_numbers(writer, 3);
    assert_int_equal(bags_writer_shards(writer), 1);
    assert_null(strstr(notes, "sync ")); /* of a file */
    noted("sync_dir", at("x"));
    noted("sync_dir", at("x/y"));
    notes[0] = 0;
    assert_ok(bags_writer_sync(writer, &said));
    noted("sync_dir", at("x/y/set/000001"));
    noted("sync_dir", at("x/y/set"));
    noted("sync_dir", at("x/y"));
    assert_ok(bags_writer_close(writer, &said));
}

/* Append until refs.idx is written, or this many times: a full buffer has more. */
static int append_until_written(bags_writer *writer, int most) {
    int count = 0;
    for (; count < most && file_size(at("x/refs.idx")) == 0; count++)
        append_numbers(writer, 1);
    return count;
}

static void what_was_appended_is_flushed_after_flush_seconds(void **state) {
    bags_writer_options options = writing(0);
    bags_writer *writer;
    (void)state;
    options.flush_seconds = 1e-6;
    assert_opens(writer, bags_writer_open(at("x"), &number, 1, &options, &said));
    int count = append_until_written(writer, 100000);
    assert_true(file_size(at("x/refs.idx")) == (uint64_t)(8 * count));
    assert_true(file_size(at("x/a.idx")) == (uint64_t)(8 * count));
    assert_ok(bags_writer_close(writer, &said));
}

static void flush_seconds_that_did_not_pass_write_nothing(void **state) {
    static const double seconds[] = {0, 1e9, HUGE_VAL};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        bags_writer_options options = writing(0);
        bags_writer *writer;
        options.flush_seconds = seconds[i];
        assert_opens(writer, bags_writer_open(at("x"), &number, 1, &options, &said));
        assert_int_equal(append_until_written(writer, 20), 20);
        bags_writer_abort(writer);
    }
}

static void flush_seconds_is_not_negative(void **state) {
    static const double seconds[] = {-1, -HUGE_VAL, HUGE_VAL - HUGE_VAL};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        bags_writer_options options = writing(0);
        options.flush_seconds = seconds[i];
        assert_refused(BAGS_ERROR_ARGUMENT,
            bags_writer_open(at("x"), &number, 1, &options, &said));
        assert_says("flush_seconds");
        assert_names(at("."), "");
    }
}

static void a_file_that_is_of_no_consequence_may_fail_to_close(void **state) {
    static const char *const files[] = {".idx", "spec.json.partial"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        bags_io io = noting();
        bags_writer_options options = writing(0);
        bags_writer *writer;
        options.env.io = &io;
        options.shard_length = 2;
        assert_opens(
            writer, bags_writer_open(at("%d", i), &number, 1, &options, &said));
        close_fails = files[i];
        append_numbers(writer, 5);
        assert_ok(bags_writer_close(writer, &said));
        assert_true(closes_failed >= 3);
        assert_names(at("%d", i), "000000 000001 000002");
        assert_names(at("%d/000001", i), "a.bag refs.bag spec.json");
    }
    close_fails = NULL;
}

static bags_writer *other_writer;

/* Another writer claims the shard once it was found to be empty. */
static int list_and_claim(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    int error = disk.io.list(user, path, each, each_user);
    if (!other_writer && strstr(path, "000000")) {
        bags_writer_options options = writing(0);
        options.shard_stop = 1;
        assert_int_equal(disk.io.remove_dir(user, path), 0);
        other_writer = bags_writer_open(at("x"), &number, 1, &options, &said);
        assert_non_null(other_writer);
        append_numbers(other_writer, 3);
        assert_ok(bags_writer_flush(other_writer, &said));
    }
    return error;
}

static void resume_removes_nothing_of_a_writer_that_claims_the_shard(void **state) {
    bags_io io = disk.io;
    bags_writer_options options = writing(0);
    (void)state;
    io.list = list_and_claim;
    options.env.io = &io;
    options.shard_stop = 1;
    options.existing = BAGS_EXISTING_RESUME;
    other_writer = NULL;
    make_dir(at("x"));
    make_dir(at("x/000000"));
    bags_writer *writer = bags_writer_open(at("x"), &number, 1, &options, NULL);
    assert_non_null(other_writer);
    assert_names(at("x/000000"), "a.bag a.idx refs.bag refs.idx spec.json.partial");
    bags_writer_abort(writer);
    assert_ok(bags_writer_close(other_writer, &said));
    assert_names(at("x/000000"), "a.bag refs.bag spec.json");
    bags_reader *reader;
    assert_opens(reader, bags_reader_open(at("x"), NULL, &said));
    assert_int_equal(bags_reader_length(reader), 3);
    bags_reader_close(reader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_disturbed_claim_is_repeated),
        TEST(abort_after_a_failed_commit_removes_the_shard),
        TEST(an_empty_path_is_an_argument_error),
        TEST(an_undecodable_value_of_a_range_names_its_datapoint),
        TEST(the_spec_is_written_as_python_writes_it),
        TEST(names_that_are_not_file_names_everywhere_are_refused),
        TEST(other_names_are_written_and_read),
        TEST(a_duplicate_name_is_refused),
        TEST(types_that_cannot_be_parsed_are_refused),
        TEST(invalid_arguments_are_refused_when_a_writer_is_opened),
        TEST(unknown_types_are_legal_with_any_type),
        TEST(unknown_types_are_refused_when_a_writer_is_opened),
        TEST(names_of_dtypes_are_short_for_arrays),
        TEST(a_registered_codec_has_its_own_arguments),
        TEST(what_a_codec_does_not_return_is_not_invented),
        TEST(an_invalid_type_on_disk_is_read_as_bytes),
        TEST(names_that_are_too_long_are_refused),
        TEST(more_fields_than_a_spec_can_hold_are_refused),
        TEST(datapoints_are_written_as_the_format_says),
        TEST(a_datapoint_that_was_refused_leaves_no_trace),
        TEST(close_returns_the_first_refusal_whatever_err_was_passed),
        TEST(a_datapoint_that_was_refused_is_not_one_that_was_not_ended),
        TEST(a_refusal_that_was_cleared_is_not_returned_by_close),
        TEST(a_failure_of_the_system_is_not_cleared),
        TEST(a_long_sequence_that_was_dropped_leaves_no_trace),
        TEST(memory_does_not_grow_with_a_streamed_sequence),
        TEST(a_datapoint_without_fields_is_written),
        TEST(encoded_blobs_are_stored_whatever_the_type),
        TEST(a_value_of_kind_none_is_refused),
        TEST(calls_out_of_order_are_state_errors),
        TEST(a_begin_without_an_end_refuses_both_datapoints),
        TEST(calls_on_a_writer_that_did_not_open_fail),
        TEST(a_codec_that_fails_without_a_message_does_no_harm),
        TEST(a_datapoint_that_was_not_ended_is_not_written),
        TEST(closing_and_aborting_null_is_allowed),
        TEST(an_unfinished_dataset_has_a_partial_spec_and_journals),
        TEST(abort_removes_the_dataset),
        TEST(abort_keeps_files_that_no_writer_creates),
        TEST(an_empty_dataset_has_a_spec_and_empty_bags),
        TEST(existing_files_are_left_alone),
        TEST(a_writer_keeps_journals_on_request),
        TEST(a_dataset_is_synced_unless_no_sync_is_set),
        TEST(bytes_after_a_cancelled_datapoint_start_to_reach_the_disk_again),
        TEST(a_system_failure_is_final_and_leaves_no_spec),
        TEST(registered_codecs_are_opened_used_and_closed),
        TEST(arguments_may_be_freed_after_the_call),
        TEST(close_syncs_a_bag_that_was_synced_before),
        TEST(the_directory_of_a_bag_without_a_name_is_synced),
        TEST(new_parents_are_synced_at_once),
        TEST(a_file_that_is_of_no_consequence_may_fail_to_close),
        TEST(what_was_appended_is_flushed_after_flush_seconds),
        TEST(flush_seconds_that_did_not_pass_write_nothing),
        TEST(flush_seconds_is_not_negative),
        TEST(resume_removes_nothing_of_a_writer_that_claims_the_shard),
    };
    return cmocka_run_group_tests_name("writer", tests, NULL, NULL);
}
