/* Type strings, dtypes, values, buffers, the built-in codecs and the registry. */
// flavours: test: asan; check: release
#include "check.h"

#include <math.h>

/* ---- types ---- */

static void valid_type_strings_are_parsed(void **state) {
    static const struct {
        const char *text, *name, *arguments;
        size_t count;
        bool sequence;
    } rows[] = {
        {"utf8", "utf8", "", 0, false},
        {"utf8[]", "utf8", "", 0, true},
        {"int(4)", "int", "4", 1, false},
        {"int(4,big)[]", "int", "4,big", 2, true},
        {"array(float32,64,128)", "array", "float32,64,128", 3, false},
        {"array(float32,-1,4)[]", "array", "float32,-1,4", 3, true},
        {"q()", "q", "", 1, false},
        {"q()[]", "q", "", 1, true},
        {"q(,)", "q", ",", 2, false},
        {"q(,,)[]", "q", ",,", 3, true},
        {"mp4(29.97)", "mp4", "29.97", 1, false},
        {"-", "-", "", 0, false},
        {"_", "_", "", 0, false},
        {"8", "8", "", 0, false},
        {"a-b_c9(.)", "a-b_c9", ".", 1, false},
        {"x(-_.)", "x", "-_.", 1, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_type type;
        memset(&type, 0xee, sizeof type);
        assert_ok(bags_type_parse(rows[i].text, &type, &said));
        assert_text(type.name, rows[i].name);
        assert_text(type.arguments, rows[i].arguments);
        assert_int_equal(type.count, rows[i].count);
        assert_int_equal(type.sequence, rows[i].sequence);
        assert_ptr_equal(type.name.data, rows[i].text);
        assert_int_equal(bags_type_parse(rows[i].text, &type, NULL), BAGS_OK);
    }
}

static void invalid_type_strings_are_refused(void **state) {
    static const char *const rows[] = {"", "[]", "()", "()[]", "(4)", "Utf8", "uTf8",
        "utf8 ", " utf8", "utf8\n", "utf8[]\n", "utf8[ ]", "utf8[", "utf8]", "utf8[][]",
        "[]utf8", "utf8[](4)", "int(4", "int4)", "int(4))", "int((4)", "int(4)(4)",
        "int(4)x", "int(4) []", "int( 4)", "int(4 )", "int(A)", "array(<f4)",
        "array(float32;3)", "a.b", "a,b", "a/b", "a\\b", "a:b", "a+b", "\x7f", "\x01",
        "caf\xc3\xa9", "x(\xc3\xa9)", "x(\n)", "utf8[1]", "utf8()()", "utf8[]()",
        "\xff\xfe", "a\tb"};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_type type, before;
        memset(&type, 0xee, sizeof type);
        before = type;
        assert_fails(BAGS_ERROR_TYPE, bags_type_parse(rows[i], &type, &said));
        assert_memory_equal(&type, &before, sizeof type);
        assert_int_equal(bags_type_parse(rows[i], &type, NULL), BAGS_ERROR_TYPE);
    }
}

static void the_message_about_a_type_of_any_length_is_utf8(void **state) {
    char text[2 * BAGS_ERROR_SIZE];
    (void)state;
    for (size_t size = 1; size < sizeof text - 4; size += size < 120 ? 1 : 97) {
        memset(text, 'a', size);
        memcpy(text + size, "\xf0\x9f\x98\x80", 5);
        bags_type type;
        assert_fails(BAGS_ERROR_TYPE, bags_type_parse(text, &type, &said));
    }
}

static void arguments_are_found_by_index(void **state) {
    bags_type type;
    (void)state;
    assert_ok(bags_type_parse("x(,a,,bc,)[]", &type, &said));
    assert_int_equal(type.count, 5);
    static const char *const expected[] = {"", "a", "", "bc", ""};
    for (size_t i = 0; i < 5; i++)
        assert_text(bags_type_argument(&type, i), expected[i]);
    assert_int_equal(bags_type_argument(&type, 5).size, 0);
    assert_int_equal(bags_type_argument(&type, SIZE_MAX).size, 0);
    assert_ok(bags_type_parse("x", &type, &said));
    assert_int_equal(bags_type_argument(&type, 0).size, 0);
    assert_ok(bags_type_parse("x()", &type, &said));
    assert_int_equal(bags_type_argument(&type, 0).size, 0);
    assert_ok(bags_type_parse("jpeg(95)", &type, &said));
    assert_text(bags_type_argument(&type, 0), "95");
}

static void numeric_arguments_are_decimal_and_fit_64_bits(void **state) {
    static const struct {
        const char *text;
        bool is;
        uint64_t number;
    } rows[] = {
        {"x(0)", true, 0},
        {"x(7)", true, 7},
        {"x(007)", true, 7},
        {"x(18446744073709551615)", true, UINT64_MAX},
        {"x(00000000000000000000000000000000000000012)", true, 12},
        {"x(18446744073709551616)", false, 0},
        {"x(18446744073709551620)", false, 0},
        {"x(28446744073709551615)", false, 0},
        {"x(184467440737095516150)", false, 0},
        {"x(99999999999999999999999999999999)", false, 0},
        {"x()", false, 0},
        {"x(,1)", false, 0},
        {"x(-1)", false, 0},
        {"x(1.5)", false, 0},
        {"x(1a)", false, 0},
        {"x(0x10)", false, 0},
        {"x", false, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_type type;
        uint64_t number = 99;
        assert_ok(bags_type_parse(rows[i].text, &type, &said));
        assert_int_equal(bags_type_number(&type, 0, &number), rows[i].is);
        assert_true(number == (rows[i].is ? rows[i].number : 99));
    }
}

/* ---- dtypes ---- */

static void dtypes_are_parsed_in_every_numpy_spelling(void **state) {
    static const struct {
        const char *text;
        bags_dtype dtype;
        bool big;
    } rows[] = {
        {"bool", BAGS_DTYPE_BOOL, false},
        {"?", BAGS_DTYPE_BOOL, false},
        {"|b1", BAGS_DTYPE_BOOL, false},
        {"b1", BAGS_DTYPE_BOOL, false},
        {"uint8", BAGS_DTYPE_UINT8, false},
        {"u1", BAGS_DTYPE_UINT8, false},
        {"|u1", BAGS_DTYPE_UINT8, false},
        {"<u1", BAGS_DTYPE_UINT8, false},
        {"uint16", BAGS_DTYPE_UINT16, false},
        {"<u2", BAGS_DTYPE_UINT16, false},
        {">u2", BAGS_DTYPE_UINT16, true},
        {"uint32", BAGS_DTYPE_UINT32, false},
        {"<u4", BAGS_DTYPE_UINT32, false},
        {"uint64", BAGS_DTYPE_UINT64, false},
        {"<u8", BAGS_DTYPE_UINT64, false},
        {">u8", BAGS_DTYPE_UINT64, true},
        {"int8", BAGS_DTYPE_INT8, false},
        {"|i1", BAGS_DTYPE_INT8, false},
        {"i1", BAGS_DTYPE_INT8, false},
        {"int16", BAGS_DTYPE_INT16, false},
        {"<i2", BAGS_DTYPE_INT16, false},
        {"i2", BAGS_DTYPE_INT16, false},
        {"int32", BAGS_DTYPE_INT32, false},
        {">i4", BAGS_DTYPE_INT32, true},
        {"int64", BAGS_DTYPE_INT64, false},
        {"<i8", BAGS_DTYPE_INT64, false},
        {"float16", BAGS_DTYPE_FLOAT16, false},
        {"half", BAGS_DTYPE_FLOAT16, false},
        {"<f2", BAGS_DTYPE_FLOAT16, false},
        {"float32", BAGS_DTYPE_FLOAT32, false},
        {"<f4", BAGS_DTYPE_FLOAT32, false},
        {"f4", BAGS_DTYPE_FLOAT32, false},
        {">f4", BAGS_DTYPE_FLOAT32, true},
        {"single", BAGS_DTYPE_FLOAT32, false},
        {"float64", BAGS_DTYPE_FLOAT64, false},
        {"double", BAGS_DTYPE_FLOAT64, false},
        {"f8", BAGS_DTYPE_FLOAT64, false},
        {"<f8", BAGS_DTYPE_FLOAT64, false},
        {">f8", BAGS_DTYPE_FLOAT64, true},
        {"float", BAGS_DTYPE_FLOAT64, false},
        {"complex64", BAGS_DTYPE_COMPLEX64, false},
        {"c8", BAGS_DTYPE_COMPLEX64, false},
        {">c8", BAGS_DTYPE_COMPLEX64, true},
        {"complex128", BAGS_DTYPE_COMPLEX128, false},
        {"<c16", BAGS_DTYPE_COMPLEX128, false},
        {">c16", BAGS_DTYPE_COMPLEX128, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool big = !rows[i].big;
        size_t size = strlen(rows[i].text);
        /* A separate block, without NUL. */
        char *text = (char *)malloc(size);
        memcpy(text, rows[i].text, size);
        assert_int_equal(bags_dtype_parse(text, size, &big), rows[i].dtype);
        if (bags_dtype_size(rows[i].dtype) > 1)
            assert_int_equal(big, rows[i].big);
        assert_int_equal(bags_dtype_parse(text, size, NULL), rows[i].dtype);
        free(text);
    }
}

static void other_dtype_names_are_refused(void **state) {
    static const char *const rows[] = {"", "<", ">", "|", "f3", "f16", "float",
        "Float32", "float320", "u3", "<<f4", "f4 ", " f4", "complex256", "c32", "c4",
        "object", "S4", "U16", "V8", "datetime64", "float8", "int128", "bfloat16",
        "<>f4", "f", "float32\n"};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_dtype dtype = bags_dtype_parse(rows[i], strlen(rows[i]), NULL);
        /* NumPy has these two spellings as well. */
        if (strcmp(rows[i], "float") == 0)
            assert_int_equal(dtype, BAGS_DTYPE_FLOAT64);
        else if (strcmp(rows[i], "f") == 0)
            assert_int_equal(dtype, BAGS_DTYPE_FLOAT32);
        else
            assert_int_equal(dtype, BAGS_DTYPE_NONE);
    }
    assert_int_equal(bags_dtype_parse("float32\0", 8, NULL), BAGS_DTYPE_NONE);
    assert_int_equal(bags_dtype_parse("\0f4", 3, NULL), BAGS_DTYPE_NONE);
    assert_int_equal(bags_dtype_parse(" int ", 5, NULL), BAGS_DTYPE_NONE);
    assert_int_equal(bags_dtype_parse("?  bool_", 8, NULL), BAGS_DTYPE_NONE);
}

static void dtypes_have_names_codes_and_sizes(void **state) {
    static const struct {
        bags_dtype dtype;
        const char *name, *code;
        size_t size, swap;
    } rows[] = {{BAGS_DTYPE_BOOL, "bool", "b1", 1, 1},
        {BAGS_DTYPE_UINT8, "uint8", "u1", 1, 1},
        {BAGS_DTYPE_UINT16, "uint16", "u2", 2, 2},
        {BAGS_DTYPE_UINT32, "uint32", "u4", 4, 4},
        {BAGS_DTYPE_UINT64, "uint64", "u8", 8, 8},
        {BAGS_DTYPE_INT8, "int8", "i1", 1, 1}, {BAGS_DTYPE_INT16, "int16", "i2", 2, 2},
        {BAGS_DTYPE_INT32, "int32", "i4", 4, 4},
        {BAGS_DTYPE_INT64, "int64", "i8", 8, 8},
        {BAGS_DTYPE_FLOAT16, "float16", "f2", 2, 2},
        {BAGS_DTYPE_FLOAT32, "float32", "f4", 4, 4},
        {BAGS_DTYPE_FLOAT64, "float64", "f8", 8, 8},
        {BAGS_DTYPE_COMPLEX64, "complex64", "c8", 8, 4},
        {BAGS_DTYPE_COMPLEX128, "complex128", "c16", 16, 8},
        {BAGS_DTYPE_NONE, "", "", 0, 0}, {(bags_dtype)15, "", "", 0, 0},
        {(bags_dtype)1000, "", "", 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_dtype dtype = rows[i].dtype;
        assert_string_equal(bags_dtype_name(dtype), rows[i].name);
        assert_string_equal(bags_dtype_code(dtype), rows[i].code);
        assert_int_equal(bags_dtype_size(dtype), rows[i].size);
        assert_int_equal(bags_dtype_swap(dtype), rows[i].swap);
        if (rows[i].size)
            assert_int_equal(
                bags_dtype_parse(rows[i].code, strlen(rows[i].code), NULL), dtype);
    }
}

static void the_size_of_an_array_is_the_size_of_its_elements(void **state) {
    static const uint64_t shape[] = {3, 0, 5, UINT64_MAX, 2};
    static const uint64_t huge[] = {(uint64_t)1 << 31, (uint64_t)1 << 31, 2};
    size_t size = 99;
    (void)state;
    assert_true(bags_array_size(BAGS_DTYPE_FLOAT32, 0, NULL, &size));
    assert_int_equal(size, 4);
    assert_true(bags_array_size(BAGS_DTYPE_COMPLEX128, 1, shape, &size));
    assert_int_equal(size, 48);
    assert_true(bags_array_size(BAGS_DTYPE_UINT8, 1, shape + 2, &size));
    assert_int_equal(size, 5);
    /* A dimension of 0 makes any other irrelevant. */
    assert_true(bags_array_size(BAGS_DTYPE_UINT8, 4, shape, &size));
    assert_int_equal(size, 0);
    size = 99;
    assert_false(bags_array_size(BAGS_DTYPE_UINT8, 2, shape + 3, &size));
    assert_false(bags_array_size(BAGS_DTYPE_UINT16, 1, shape + 3, &size));
    assert_false(bags_array_size(BAGS_DTYPE_COMPLEX128, 3, huge, &size));
    assert_false(bags_array_size(BAGS_DTYPE_NONE, 0, NULL, &size));
    assert_false(bags_array_size((bags_dtype)1000, 1, shape, &size));
    assert_int_equal(size, 99);
}

static void the_bytes_of_elements_are_swapped(void **state) {
    static const char from[] = "abcdefghijklmnop";
    static const struct {
        size_t element;
        const char *to;
    } rows[] = {{1, "abcdefghijklmnop"}, {2, "badcfehgjilknmpo"},
        {4, "dcbahgfelkjiponm"}, {8, "hgfedcbaponmlkji"}, {16, "ponmlkjihgfedcba"}};
    uint16_t one = 1;
    unsigned char first;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char copy[16], same[16];
        bags_swap_bytes(copy, from, 16, rows[i].element);
        assert_memory_equal(copy, rows[i].to, 16);
        memcpy(same, from, 16);
        bags_swap_bytes(same, same, 16, rows[i].element);
        assert_memory_equal(same, rows[i].to, 16);
        bags_swap_bytes(same, same, 0, rows[i].element);
        assert_memory_equal(same, rows[i].to, 16);
    }
    memcpy(&first, &one, 1);
    assert_int_equal(bags_little_endian(), first == 1);
}

static void numbers_are_loaded_and_stored_in_both_byte_orders(void **state) {
    static const unsigned char data[] = {0xF1, 2, 3, 4, 5, 6, 7, 0xF8};
    (void)state;
    assert_true(bags_load_bytes(data, 0, false) == 0);
    assert_true(bags_load_bytes(data, 1, true) == 0xF1);
    assert_true(bags_load_bytes(data, 3, false) == 0x0302F1);
    assert_true(bags_load_bytes(data, 3, true) == 0xF10203);
    assert_true(bags_load_bytes(data, 8, false) == UINT64_C(0xF8070605040302F1));
    assert_true(bags_load_bytes(data, 8, true) == UINT64_C(0xF1020304050607F8));
    for (size_t size = 0; size <= 8; size++)
        for (int big = 0; big < 2; big++) {
            unsigned char out[9];
            memset(out, 0xAA, sizeof out);
            bags_store_bytes(out, size, big, bags_load_bytes(data, size, big));
            assert_memory_equal(out, data, size);
            assert_int_equal(out[size], 0xAA);
        }
}

static void a_view_is_a_text_only_if_all_bytes_are_equal(void **state) {
    static const bags_view nothing = {NULL, 0};
    bags_view view = {(const unsigned char *)"utf8\0x", 4};
    (void)state;
    assert_true(bags_view_is(view, "utf8"));
    assert_false(bags_view_is(view, "utf") || bags_view_is(view, "utf88"));
    assert_false(bags_view_is(view, "utf9") || bags_view_is(view, ""));
    view.size = 5;
    assert_false(bags_view_is(view, "utf8"));
    assert_true(bags_view_is(nothing, ""));
    assert_false(bags_view_is(nothing, "x"));
}

/* ---- errors, buffers ---- */

static void every_code_has_a_distinct_name(void **state) {
    (void)state;
    for (int i = BAGS_OK; i <= BAGS_ERROR_MEMORY; i++) {
        assert_true(strlen(bags_code_name((bags_code)i)) > 1);
        for (int j = BAGS_OK; j < i; j++)
            assert_string_not_equal(
                bags_code_name((bags_code)i), bags_code_name((bags_code)j));
    }
    assert_non_null(bags_code_name((bags_code)1000));
    assert_string_equal(bags_version(), BAGS_VERSION);
}

static const char *remedy(void) {
    return said.remedy ? said.message + said.remedy : "";
}

static void a_remedy_is_the_formats_and_none_of_a_name(void **state) {
    (void)state;
    bags_fail(&said, BAGS_ERROR_IO, "%s: lost; call %s", "a; b", "c");
    assert_string_equal(remedy(), ""); /* its last words are a name */
    bags_fail(&said, BAGS_ERROR_IO, "%s: lost (%d); call it", "a; b", 3);
    assert_string_equal(remedy(), "call it");
    bags_fail(&said, BAGS_ERROR_IO, "lost; call it; or not");
    assert_string_equal(remedy(), "call it; or not");
    bags_fail(&said, BAGS_ERROR_IO, "%s: lost", "a; bags_recover");
    assert_string_equal(remedy(), "");
    bags_fail(&said, BAGS_ERROR_IO, "lost");
    assert_string_equal(remedy(), "");
    /* What is cut off is none. */
    char text[BAGS_ERROR_SIZE + 1];
    for (size_t size = BAGS_ERROR_SIZE - 20; size < BAGS_ERROR_SIZE; size++) {
        memset(text, 'x', size);
        text[size] = 0;
        bags_fail(&said, BAGS_ERROR_IO, "%s: lost; call it", text);
        assert_string_equal(remedy(), size + 15 < BAGS_ERROR_SIZE ? "call it" : "");
    }
    /* A path in front of a message moves it. */
    bags_field field = {"n", "i64"};
    bags_writer *writer;
    const char *path = at("a; set BAGS_EXISTING_APPEND");
    assert_opens(writer, bags_writer_open(path, &field, 1, NULL, &said));
    assert_ok(bags_writer_close(writer, &said));
    assert_refused(BAGS_ERROR_EXISTS, bags_writer_open(path, &field, 1, NULL, &said));
    assert_string_equal(remedy(), "remove it, or write to a new path");
}

static void an_error_inside_of_another_keeps_its_remedy(void **state) {
    char text[BAGS_ERROR_SIZE + 1];
    bags_field field = {"n", "uft8"};
    (void)state;
    bags_fail(&said, BAGS_ERROR_MISSING, "lost; call it");
    said.system = 7;
    assert_int_equal(
        bags_prefix(&said, BAGS_ERROR_IO, "%s: \n: ", "a; b"), BAGS_ERROR_IO);
    assert_string_equal(said.message, "a; b: ?: lost; call it");
    assert_string_equal(remedy(), "call it");
    assert_true(said.code == BAGS_ERROR_IO && said.system == 7);
    assert_int_equal(bags_suffix(&said, "; or not"), BAGS_ERROR_IO);
    assert_string_equal(remedy(), "call it; or not");
    bags_fail(&said, BAGS_ERROR_IO, "lost %s", "a; b");
    bags_prefix(&said, BAGS_ERROR_IO, "%s; x: ", "a; b");
    assert_string_equal(remedy(), "");
    bags_suffix(&said, " (%s)", "c; d");
    assert_string_equal(remedy(), "");
    bags_suffix(&said, "; call %s", "e");
    assert_string_equal(said.message, "a; b; x: lost a; b (c; d); call e");
    assert_string_equal(remedy(), "call e");
    assert_int_equal(bags_prefix(NULL, BAGS_ERROR_IO, "x"), BAGS_ERROR_IO);
    assert_int_equal(bags_suffix(NULL, "x"), BAGS_OK);
    /* What does not fit is lost, and is then no remedy; never the front. */
    for (size_t size = 0; size <= BAGS_ERROR_SIZE; size++) {
        memset(text, 'x', size);
        text[size] = 0;
        bags_fail(&said, BAGS_ERROR_IO, "lost; call it");
        bags_prefix(&said, BAGS_ERROR_IO, "%s: ", text);
        assert_true(size > BAGS_ERROR_SIZE * 3 / 4 - 3 ||
                    strcmp(said.message + size, ": lost; call it") == 0);
        assert_string_equal(remedy(), "call it");
        bags_suffix(&said, "; %s", text);
        assert_true(strlen(said.message) < BAGS_ERROR_SIZE);
        bags_fail(&said, BAGS_ERROR_IO, "%s", text);
        bags_suffix(&said, "; call it");
        assert_true(strlen(said.message) < BAGS_ERROR_SIZE);
        assert_string_equal(remedy(), size + 10 < BAGS_ERROR_SIZE ? "call it"
                                      : size + 3 < BAGS_ERROR_SIZE
                                          ? said.message + size + 2
                                          : "");
    }
    /* In the library: another error in a message, and one that a coder kept. */
    assert_refused(BAGS_ERROR_TYPE, bags_writer_open(at("x"), &field, 1, NULL, &said));
    assert_string_equal(
        remedy(), "did you mean \"utf8\"?; set any_type to store its blobs");
    bags_writer_options options = {0};
    options.any_type = true;
    bags_writer *writer;
    bags_value value = bags_uint(1);
    bags_entry entry = {"n", &value, 1};
    assert_opens(writer, bags_writer_open(at("y"), &field, 1, &options, &said));
    assert_fails(BAGS_ERROR_TYPE, bags_writer_append(writer, &entry, 1, &said));
    assert_non_null(strstr(remedy(), "add one to the registry"));
    assert_ptr_equal(strstr(said.message, "add one to the registry"), remedy());
    bags_writer_abort(writer);
}

static void bags_fail_writes_and_truncates_its_message(void **state) {
    char text[3 * BAGS_ERROR_SIZE];
    (void)state;
    assert_fails(BAGS_ERROR_RANGE,
        bags_fail(&said, BAGS_ERROR_RANGE, "blob %d of %s", 7, "x.bag"));
    assert_string_equal(said.message, "blob 7 of x.bag");
    assert_int_equal(said.system, 0);
    assert_int_equal(bags_fail(NULL, BAGS_ERROR_IO, "%s", ""), BAGS_ERROR_IO);
    const char *none = NULL;
    assert_int_equal(bags_fail(&said, BAGS_ERROR_IO, none), BAGS_ERROR_IO);
    assert_string_equal(said.message, "");
    /* Truncated between characters, wherever the end is. */
    for (size_t front = 0; front < 4; front++) {
        size_t size = front;
        memset(text, 'x', front);
        while (size < 2 * BAGS_ERROR_SIZE) {
            memcpy(text + size, "\xe2\x82\xac", 3);
            size += 3;
        }
        text[size] = 0;
        assert_fails(BAGS_ERROR_IO, bags_fail(&said, BAGS_ERROR_IO, "%s", text));
        assert_in_range(
            strlen(said.message), BAGS_ERROR_SIZE - 16, BAGS_ERROR_SIZE - 1);
        assert_memory_equal(said.message, text, BAGS_ERROR_SIZE - 16);
    }
}

static void a_buffer_grows_by_half_and_keeps_its_content(void **state) {
    bags_buffer buffer = {NULL, 0, NULL, NULL};
    size_t moves = 0;
    (void)state;
    buffer.resize = memory.allocator.resize;
    buffer.user = memory.allocator.user;
    for (size_t size = 1; size <= 100000; size++) {
        unsigned char *before = buffer.data;
        assert_ok(bags_buffer_reserve(&buffer, size, &said));
        assert_true(buffer.capacity >= size);
        moves += buffer.data != before;
        buffer.data[size - 1] = (unsigned char)size;
        assert_int_equal(buffer.data[size / 2], (size / 2 + 1) & 255);
    }
    assert_in_range(moves, 1, 40);
    assert_true((uintptr_t)buffer.data % _Alignof(max_align_t) == 0);
    memory.fail_at = memory.calls + 1;
    unsigned char *data = buffer.data;
    size_t capacity = buffer.capacity;
    assert_fails(BAGS_ERROR_MEMORY, bags_buffer_reserve(&buffer, 10 * capacity, &said));
    assert_ptr_equal(buffer.data, data);
    assert_int_equal(buffer.capacity, capacity);
    assert_fails(BAGS_ERROR_MEMORY, bags_buffer_reserve(&buffer, SIZE_MAX, &said));
    assert_fails(
        BAGS_ERROR_MEMORY, bags_buffer_reserve(&buffer, SIZE_MAX / 2 + 2, &said));
    assert_ok(bags_buffer_reserve(&buffer, 0, &said));
    bags_buffer_free(&buffer);
    assert_null(buffer.data);
    assert_int_equal(buffer.capacity, 0);
    assert_null(buffer.user);
    bags_buffer_free(&buffer);
    bags_buffer_free(NULL);
    assert_ok(bags_buffer_reserve(&buffer, 10, &said));
    bags_buffer_free(&buffer);
}

/* ---- codecs ---- */

typedef struct coder {
    const bags_codec *codec;
    void *state;
    bags_buffer scratch;
} coder;

static bags_code coder_try(coder *c, const char *text) {
    bags_type type;
    memset(c, 0, sizeof *c);
    bags_code code = bags_type_parse(text, &type, &said);
    if (code)
        return code;
    c->codec = bags_registry_find(NULL, type.name);
    if (!c->codec)
        return bags_fail(&said, BAGS_ERROR_TYPE, "no codec for %s", text);
    c->scratch.resize = memory.allocator.resize;
    c->scratch.user = memory.allocator.user;
    if (!c->codec->open)
        return type.count ? bags_fail(&said, BAGS_ERROR_TYPE, "no arguments") : BAGS_OK;
    return c->codec->open(c->codec, &type, &memory.allocator, &c->state, &said);
}

static coder coder_open(const char *text) {
    coder c;
    assert_ok(coder_try(&c, text));
    return c;
}

static void coder_close(coder *c) {
    bags_buffer_free(&c->scratch);
    if (c->codec->close)
        c->codec->close(c->state);
}

static bags_code coder_encode(coder *c, bags_value value, bags_view *blob) {
    return c->codec->encode(c->state, &value, &c->scratch, blob, &said);
}

static bags_code coder_decode(
    coder *c, const void *data, size_t size, bags_value *value) {
    bags_view blob = {(const unsigned char *)data, size};
    return c->codec->decode(c->state, blob, &c->scratch, value, &said);
}

static bags_value make_bytes(const void *data, size_t size) {
    bags_value value = bags_utf8_sized((const char *)data, size);
    value.kind = BAGS_KIND_BYTES;
    return value;
}

static void bytes_are_stored_as_given(void **state) {
    coder c = coder_open("bytes");
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    assert_ok(coder_encode(&c, make_bytes("a\0b\xff", 4), &blob));
    assert_bytes(blob, "a\0b\xff", 4);
    assert_ok(coder_encode(&c, make_bytes(NULL, 0), &blob));
    assert_int_equal(blob.size, 0);
    assert_ok(coder_decode(&c, "a\0b\xff", 4, &value));
    assert_int_equal(value.kind, BAGS_KIND_BYTES);
    assert_int_equal(value.size, 4);
    assert_memory_equal(value.data, "a\0b\xff", 4);
    assert_ok(coder_decode(&c, NULL, 0, &value));
    assert_int_equal(value.size, 0);
    assert_fails(BAGS_ERROR_VALUE, coder_encode(&c, bags_int(1), &blob));
    coder_close(&c);
}

static const struct {
    const char *text;
    size_t size;
} good_utf8[] = {{"", 0}, {"a", 1}, {"a\0b", 3}, {"\x7f", 1}, {"\xc2\x80", 2},
    {"\xdf\xbf", 2}, {"\xe0\xa0\x80", 3}, {"\xed\x9f\xbf", 3}, {"\xee\x80\x80", 3},
    {"\xef\xbf\xbf", 3}, {"\xf0\x90\x80\x80", 4}, {"\xf4\x8f\xbf\xbf", 4},
    {"\xef\xbb\xbf", 3}, {"\xf0\x9f\x98\x80", 4}, {"\xef\xbf\xbe", 3}, {"\0", 1},
    {"\xe2\x82\xac\xc3\xa9z", 6}};

static const struct {
    const char *text;
    size_t size;
} bad_utf8[] = {{"\x80", 1}, {"\xbf", 1}, {"\xc0\x80", 2}, {"\xc1\xbf", 2}, {"\xc2", 1},
    {"\xc2 ", 2}, {"\xc2\xc2", 2}, {"\xe0\x80\x80", 3}, {"\xe0\x9f\xbf", 3},
    {"\xe2\x82", 2}, {"\xe2\x82 ", 3}, {"\xe2", 1}, {"\xed\xa0\x80", 3},
    {"\xed\xbf\xbf", 3}, {"\xed\xa0\xbd\xed\xb8\x80", 6}, {"\xf0\x80\x80\x80", 4},
    {"\xf0\x8f\xbf\xbf", 4}, {"\xf0\x9f\x98", 3}, {"\xf0\x9f", 2}, {"\xf0", 1},
    {"\xf4\x90\x80\x80", 4}, {"\xf5\x80\x80\x80", 4}, {"\xf8\x88\x80\x80\x80", 5},
    {"\xfc\x84\x80\x80\x80\x80", 6}, {"\xfe", 1}, {"\xff", 1}, {"\xf0\x9f\x98 ", 4},
    {"\xe2\x28\xa1", 3}, {"\xf0\x28\x8c\xbc", 4}};

static void utf8_accepts_only_valid_text(void **state) {
    coder c = coder_open("utf8");
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    for (size_t i = 0; i < sizeof good_utf8 / sizeof good_utf8[0]; i++) {
        const char *text = good_utf8[i].text;
        size_t size = good_utf8[i].size;
        assert_ok(coder_encode(&c, bags_utf8_sized(text, size), &blob));
        assert_bytes(blob, text, size);
        assert_ok(coder_decode(&c, text, size, &value));
        assert_int_equal(value.kind, BAGS_KIND_UTF8);
        assert_int_equal(value.size, size);
        assert_memory_equal(value.data, text, size);
        size_t bad = 99;
        assert_true(bags_utf8_valid(text, size, &bad));
        assert_int_equal(bad, 99);
    }
    for (size_t i = 0; i < sizeof bad_utf8 / sizeof bad_utf8[0]; i++) {
        /* At every position in a longer text, so that no fast path skips it,
         * and in a block that ends where the text ends. */
        for (size_t front = 0; front < 40; front += front < 20 ? 1 : 7) {
            for (size_t back = 0; back < 20; back += 9) {
                size_t size = front + bad_utf8[i].size + back;
                char *text = (char *)malloc(size);
                memset(text, 'x', size);
                memcpy(text + front, bad_utf8[i].text, bad_utf8[i].size);
                assert_fails(BAGS_ERROR_VALUE,
                    coder_encode(&c, bags_utf8_sized(text, size), &blob));
                assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, text, size, &value));
                size_t bad = 99;
                assert_false(bags_utf8_valid(text, size, &bad));
                assert_in_range(bad, front, front + bad_utf8[i].size - 1);
                assert_false(bags_utf8_valid(text, size, NULL));
                free(text);
            }
        }
    }
    assert_fails(BAGS_ERROR_VALUE, coder_encode(&c, make_bytes("a", 1), &blob));
    assert_fails(BAGS_ERROR_VALUE, coder_encode(&c, bags_int(1), &blob));
    coder_close(&c);
}

/* The decoders of `int` of the two Python packages. bags 0.5:
 * int.from_bytes(blob, 'little'). */
static uint64_t python_unsigned(bags_view blob) {
    uint64_t number = 0;
    for (size_t i = blob.size; i > 0; i--) {
        assert_true(number >> 56 == 0);
        number = number << 8 | blob.data[i - 1];
    }
    return number;
}

/* granular 0.17.1 and later: int.from_bytes(blob, 'little', signed=True). */
static uint64_t python_signed(bags_view blob, bool *negative) {
    *negative = blob.size > 0 && blob.data[blob.size - 1] >= 0x80;
    return *negative ? 0 : python_unsigned(blob);
}

static void every_python_version_reads_the_same_int(void **state) {
    static const uint64_t rows[] = {0, 1, 127, 128, 200, 255, 256, 32767, 32768, 65535,
        65536, ((uint64_t)1 << 56) - 1, (uint64_t)1 << 56, (uint64_t)INT64_MAX,
        (uint64_t)INT64_MAX + 1, UINT64_MAX};
    coder c = coder_open("int");
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_view blob = {NULL, 0};
        bags_value value;
        bool negative = true;
        assert_ok(coder_encode(&c, bags_uint(rows[i]), &blob));
        assert_true(python_unsigned(blob) == rows[i]);
        assert_true(python_signed(blob, &negative) == rows[i]);
        assert_false(negative);
        assert_ok(coder_decode(&c, blob.data, blob.size, &value));
        assert_true(value.uint == rows[i]);
        /* No byte is there without need, */
        size_t size = blob.size;
        if (size == 0 || blob.data[size - 1])
            continue;
        assert_true(size > 1 && blob.data[size - 2] >= 0x80);
        /* and bags 0.5 writes the same number without it. */
        assert_ok(coder_decode(&c, blob.data, size - 1, &value));
        assert_int_equal(value.kind, BAGS_KIND_UINT);
        assert_true(value.uint == rows[i]);
    }
    coder_close(&c);
}

static void integers_are_encoded_as_documented(void **state) {
    static const struct {
        const char *type;
        uint64_t number;
        const char *blob;
        size_t size;
    } rows[] = {
        {"int", 0, "", 0},
        {"int", 1, "\x01", 1},
        {"int", 127, "\x7f", 1},
        {"int", 128, "\x80\x00", 2},
        {"int", 255, "\xff\x00", 2},
        {"int", 256, "\x00\x01", 2},
        {"int", 32767, "\xff\x7f", 2},
        {"int", 65535, "\xff\xff\x00", 3},
        {"int", 65536, "\x00\x00\x01", 3},
        {"int", (uint64_t)1 << 56, "\0\0\0\0\0\0\0\x01", 8},
        {"int", ((uint64_t)1 << 56) - 1, "\xff\xff\xff\xff\xff\xff\xff\0", 8},
        {"int", UINT64_MAX, "\xff\xff\xff\xff\xff\xff\xff\xff\0", 9},
        {"int(0)", 0, "", 0},
        {"int(1)", 255, "\xff", 1},
        {"int(2)", 1, "\x01\x00", 2},
        {"int(2,little)", 1, "\x01\x00", 2},
        {"int(2,big)", 1, "\x00\x01", 2},
        {"int(4)", 0x01020304, "\x04\x03\x02\x01", 4},
        {"int(4,big)", 0x01020304, "\x01\x02\x03\x04", 4},
        {"int(3,big)", 0x010203, "\x01\x02\x03", 3},
        {"int(8)", UINT64_MAX, "\xff\xff\xff\xff\xff\xff\xff\xff", 8},
        {"int(10)", UINT64_MAX, "\xff\xff\xff\xff\xff\xff\xff\xff\0\0", 10},
        {"int(10,big)", UINT64_MAX, "\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 10},
        {"int(10,big)", 5, "\0\0\0\0\0\0\0\0\0\x05", 10},
        {"u64", 0, "\0\0\0\0\0\0\0\0", 8},
        {"u64", UINT64_MAX, "\xff\xff\xff\xff\xff\xff\xff\xff", 8},
        {"u64", 0x0102030405060708u, "\x08\x07\x06\x05\x04\x03\x02\x01", 8},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        coder c = coder_open(rows[i].type);
        bags_view blob = {NULL, 0};
        bags_value value;
        assert_ok(coder_encode(&c, bags_uint(rows[i].number), &blob));
        assert_bytes(blob, rows[i].blob, rows[i].size);
        if (rows[i].number <= INT64_MAX) {
            assert_ok(coder_encode(&c, bags_int((int64_t)rows[i].number), &blob));
            assert_bytes(blob, rows[i].blob, rows[i].size);
        }
        assert_ok(coder_decode(&c, rows[i].blob, rows[i].size, &value));
        assert_int_equal(value.kind, BAGS_KIND_UINT);
        assert_true(value.uint == rows[i].number);
        if (rows[i].number <= INT64_MAX)
            assert_true(value.sint == (int64_t)rows[i].number);
        coder_close(&c);
    }
}

static void i64_is_signed(void **state) {
    static const int64_t rows[] = {0, 1, -1, 127, 128, -128, -129, INT64_MAX, INT64_MIN,
        INT64_MIN + 1, 1234567890123};
    coder c = coder_open("i64");
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_ok(coder_encode(&c, bags_int(rows[i]), &blob));
        assert_int_equal(blob.size, 8);
        assert_true(load_u64(blob.data) == (uint64_t)rows[i]);
        assert_ok(coder_decode(&c, blob.data, 8, &value));
        assert_int_equal(value.kind, BAGS_KIND_INT);
        assert_true(value.sint == rows[i]);
        if (rows[i] >= 0)
            assert_true(value.uint == (uint64_t)rows[i]);
    }
    assert_ok(coder_encode(&c, bags_uint(INT64_MAX), &blob));
    assert_fails(
        BAGS_ERROR_VALUE, coder_encode(&c, bags_uint((uint64_t)INT64_MAX + 1), &blob));
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, "1234567", 7, &value));
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, "", 0, &value));
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, "123456789", 9, &value));
    coder_close(&c);
}

static void integers_that_do_not_fit_are_refused(void **state) {
    static const struct {
        const char *type;
        int64_t number;
    } rows[] = {{"int(0)", 1}, {"int(1)", 256}, {"int(2)", 65536},
        {"int(2,big)", 65536}, {"int(7)", (int64_t)1 << 56}, {"int(4)", -1},
        {"int", -1}, {"u64", -1}, {"int(8)", INT64_MIN}, {"int(16)", -1}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        coder c = coder_open(rows[i].type);
        bags_view blob = {NULL, 0};
        assert_fails(
            BAGS_ERROR_VALUE, coder_encode(&c, bags_int(rows[i].number), &blob));
        assert_null(blob.data);
        coder_close(&c);
    }
}

static void integer_blobs_above_64_bits_are_too_large(void **state) {
    coder c = coder_open("int");
    bags_value value;
    (void)state;
    assert_ok(coder_decode(&c, "\x05\0\0\0\0\0\0\0\0\0", 10, &value));
    assert_true(value.uint == 5);
    assert_fails(BAGS_ERROR_LIMIT, coder_decode(&c, "\0\0\0\0\0\0\0\0\x01", 9, &value));
    coder_close(&c);
    c = coder_open("int(9,big)");
    assert_fails(BAGS_ERROR_LIMIT, coder_decode(&c, "\x01\0\0\0\0\0\0\0\0", 9, &value));
    assert_ok(coder_decode(&c, "\0\x80\0\0\0\0\0\0\x02", 9, &value));
    assert_true(value.uint == 0x8000000000000002u);
    coder_close(&c);
    c = coder_open("int(4)");
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, "12345", 5, &value));
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, "123", 3, &value));
    coder_close(&c);
}

static void codecs_refuse_values_of_the_wrong_kind(void **state) {
    static const char *const types[] = {
        "bytes", "utf8", "int", "int(4)", "i64", "u64", "array(uint8,1)", "array"};
    static const bags_kind takes[][2] = {{BAGS_KIND_BYTES, BAGS_KIND_BYTES},
        {BAGS_KIND_UTF8, BAGS_KIND_UTF8}, {BAGS_KIND_UINT, BAGS_KIND_INT},
        {BAGS_KIND_UINT, BAGS_KIND_INT}, {BAGS_KIND_UINT, BAGS_KIND_INT},
        {BAGS_KIND_UINT, BAGS_KIND_INT}, {BAGS_KIND_ARRAY, BAGS_KIND_ARRAY},
        {BAGS_KIND_ARRAY, BAGS_KIND_ARRAY}};
    static const uint64_t one[1] = {1};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        coder c = coder_open(types[i]);
        for (int kind = BAGS_KIND_NONE; kind <= BAGS_KIND_OBJECT + 1; kind++) {
            bags_view blob = {NULL, 0};
            bags_value value = bags_array(BAGS_DTYPE_UINT8, 1, one, "a");
            value.kind = (bags_kind)kind;
            if (kind == BAGS_KIND_BLOB)
                continue; /* no codec sees it */
            if (kind == (int)takes[i][0] || kind == (int)takes[i][1])
                assert_ok(coder_encode(&c, value, &blob));
            else
                assert_fails(BAGS_ERROR_VALUE, coder_encode(&c, value, &blob));
        }
        coder_close(&c);
    }
}

static void invalid_arguments_of_built_in_types_are_refused(void **state) {
    static const char *const rows[] = {"bytes()", "bytes(4)", "utf8(4)", "int()",
        "int(x)", "int(-1)", "int(4,middle)", "int(4,big,1)", "int(4,)", "int(,big)",
        "int(big)", "int(4.0)", "int(18446744073709551616)", "i64(8)", "u64()",
        "u64(8,big)", "array()", "array(float33)", "array(float32,)",
        "array(float32,a)", "array(float32,1.5)", "array(float32,-2)",
        "array(float32,-1,-1)", "array(,3)", "array(3)", "array(float31,2)",
        "array(object32,3)", "array(float32,99999999999999999999)"};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        coder c;
        assert_fails(BAGS_ERROR_TYPE, coder_try(&c, rows[i]));
        assert_null(c.state);
        bags_buffer_free(&c.scratch);
    }
}

/* As Python writes them: their blobs can be read without a codec. */
static void valid_arguments_without_a_built_in_codec_are_refused(void **state) {
    static const char *const rows[] = {"array(complex256,3)", "array(c32)",
        "array(object,3)", "array(bfloat16,2)", "array(intp)", "array(float8_e4m3fn,2)",
        "array(datetime64)"};
    coder c;
    (void)state;
    assert_fails(BAGS_ERROR_LIMIT, coder_try(&c, "int(1025)"));
    assert_null(c.state);
    bags_buffer_free(&c.scratch);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        poison();
        bags_code code = coder_try(&c, rows[i]);
        assert_true(code == BAGS_ERROR_TYPE || code == BAGS_ERROR_LIMIT);
        assert_int_equal(said.code, code);
        assert_null(c.state);
        bags_buffer_free(&c.scratch);
    }
}

static void more_dimensions_than_an_array_may_have_are_refused(void **state) {
    char text[1024] = "array(uint8";
    (void)state;
    for (int dims = 0; dims <= BAGS_MAX_DIMS + 2; dims++) {
        char complete[2048];
        snprintf(complete, sizeof complete, "%s)", text);
        coder c;
        if (dims <= BAGS_MAX_DIMS) {
            bags_value value;
            assert_ok(coder_try(&c, complete));
            assert_ok(coder_decode(&c, "x", 1, &value));
            assert_int_equal(value.dims, dims);
            coder_close(&c);
        } else {
            assert_fails(BAGS_ERROR_TYPE, coder_try(&c, complete));
        }
        strcat(text, ",1");
    }
}

static void shapes_that_overflow_are_refused(void **state) {
    static const char *const rows[] = {"array(float64,4294967296,4294967296)",
        "array(uint8,18446744073709551615,2)", "array(float64,2305843009213693952)",
        "array(uint8,4294967296,4294967296,4294967296,4294967296)"};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        coder c;
        assert_fails(BAGS_ERROR_TYPE, coder_try(&c, rows[i]));
        assert_says("above 2^64 bytes");
        bags_buffer_free(&c.scratch);
    }
    static const uint64_t huge[2] = {(uint64_t)1 << 63, 2};
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 2, huge, "x");
    coder c = coder_open("array");
    bags_view blob = {NULL, 0};
    assert_fails(BAGS_ERROR_VALUE, coder_encode(&c, value, &blob));
    coder_close(&c);
}

static void arrays_of_a_fixed_shape_are_stored_as_their_elements(void **state) {
    static const uint64_t shape[2] = {2, 3};
    static const float elements[6] = {0, 1, -1, 0.5f, 1e30f, -0.0f};
    coder c = coder_open("array(float32,2,3)");
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    assert_ok(
        coder_encode(&c, bags_array(BAGS_DTYPE_FLOAT32, 2, shape, elements), &blob));
    assert_bytes(blob,
        "\0\0\0\0\0\0\x80\x3f\0\0\x80\xbf\0\0\0\x3f\xca\xf2\x49\x71\0\0\0\x80", 24);
    unsigned char stored[24];
    memcpy(stored, blob.data, 24); /* decoding uses the same scratch */
    for (size_t offset = 0; offset < 9; offset++) {
        unsigned char *space = (unsigned char *)malloc(24 + offset);
        memcpy(space + offset, stored, 24);
        memset(&value, 0, sizeof value);
        assert_ok(coder_decode(&c, space + offset, 24, &value));
        assert_int_equal(value.kind, BAGS_KIND_ARRAY);
        assert_int_equal(value.dtype, BAGS_DTYPE_FLOAT32);
        assert_int_equal(value.dims, 2);
        assert_true(value.shape[0] == 2 && value.shape[1] == 3);
        assert_int_equal(value.size, 24);
        assert_true((uintptr_t)value.data % 4 == 0);
        assert_memory_equal(value.data, elements, 24);
        /* An aligned array in native byte order is not copied. */
        if (offset % 4 == 0 && little_endian())
            assert_ptr_equal(value.data, space + offset);
        free(space);
    }
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, elements, 23, &value));
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, elements, 0, &value));
    assert_fails(
        BAGS_ERROR_CORRUPT, coder_decode(&c, "1234567890123456789012345", 25, &value));
    coder_close(&c);
}

static void arrays_of_another_shape_or_dtype_are_refused(void **state) {
    static const uint64_t shapes[][3] = {
        {2, 3, 1}, {3, 2, 1}, {6, 1, 1}, {2, 2, 1}, {2, 4, 1}, {0, 3, 1}};
    static const float elements[8] = {0};
    coder c = coder_open("array(float32,2,3)");
    bags_view blob = {NULL, 0};
    (void)state;
    for (size_t i = 0; i < 6; i++)
        for (size_t dims = 0; dims <= 3; dims++) {
            bags_value value =
                bags_array(BAGS_DTYPE_FLOAT32, dims, shapes[i], elements);
            if (i == 0 && dims == 2)
                assert_ok(coder_encode(&c, value, &blob));
            else
                assert_fails(BAGS_ERROR_VALUE, coder_encode(&c, value, &blob));
        }
    for (int dtype = 0; dtype <= BAGS_DTYPE_FLOAT64 + 1; dtype++) {
        bags_value value = bags_array((bags_dtype)dtype, 2, shapes[0], elements);
        if (dtype != BAGS_DTYPE_FLOAT32)
            assert_fails(BAGS_ERROR_VALUE, coder_encode(&c, value, &blob));
    }
    coder_close(&c);
}

static void data_that_is_null_or_of_another_size_is_refused(void **state) {
    static const uint64_t shape[2] = {2, 3};
    static const float elements[6] = {0};
    static const char *const types[] = {"array(float32,2,3)", "array"};
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    for (int i = 0; i < 2; i++) {
        value = bags_array(BAGS_DTYPE_FLOAT32, 2, shape, NULL);
        assert_fails(BAGS_ERROR_ARGUMENT,
            bags_encode(NULL, types[i], &value, &scratch, &blob, &said));
        value.data = elements;
        value.size = 8;
        assert_fails(BAGS_ERROR_VALUE,
            bags_encode(NULL, types[i], &value, &scratch, &blob, &said));
    }
    value = bags_bytes(NULL, 4);
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_encode(NULL, "bytes", &value, &scratch, &blob, &said));
    value = bags_blob(NULL, 4);
    assert_fails(BAGS_ERROR_ARGUMENT,
        bags_encode(NULL, "bytes", &value, &scratch, &blob, &said));
    value = bags_bytes(NULL, 0);
    assert_ok(bags_encode(NULL, "bytes", &value, &scratch, &blob, &said));
    bags_buffer_free(&scratch);
}

static void an_array_without_dimensions_is_one_element(void **state) {
    double element = 2.5;
    coder c = coder_open("array(float64)");
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    assert_ok(
        coder_encode(&c, bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &element), &blob));
    assert_bytes(blob, "\0\0\0\0\0\0\x04\x40", 8);
    assert_ok(coder_decode(&c, blob.data, 8, &value));
    assert_int_equal(value.dims, 0);
    assert_int_equal(value.size, 8);
    coder_close(&c);
    c = coder_open("array");
    assert_ok(
        coder_encode(&c, bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, &element), &blob));
    assert_bytes(blob, "\x93\xa3<f8\x90\xc4\x08\0\0\0\0\0\0\x04\x40", 16);
    assert_ok(
        coder_decode(&c, "\x93\xa3<f8\x90\xc4\x08\0\0\0\0\0\0\x04\x40", 16, &value));
    assert_int_equal(value.dims, 0);
    assert_memory_equal(value.data, &element, 8);
    coder_close(&c);
}

static void an_array_with_a_dimension_of_0_is_empty(void **state) {
    static const uint64_t shape[3] = {4, 0, 5};
    coder c = coder_open("array(float32,4,0,5)");
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    assert_ok(coder_encode(&c, bags_array(BAGS_DTYPE_FLOAT32, 3, shape, NULL), &blob));
    assert_int_equal(blob.size, 0);
    assert_ok(coder_decode(&c, NULL, 0, &value));
    assert_int_equal(value.dims, 3);
    assert_int_equal(value.size, 0);
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, "1234", 4, &value));
    coder_close(&c);
    c = coder_open("array");
    assert_ok(coder_encode(&c, bags_array(BAGS_DTYPE_FLOAT32, 3, shape, NULL), &blob));
    assert_bytes(blob, "\x93\xa3<f4\x93\x04\x00\x05\xc4\x00", 11);
    assert_ok(coder_decode(&c, "\x93\xa3<f4\x93\x04\x00\x05\xc4\x00", 11, &value));
    assert_int_equal(value.size, 0);
    assert_true(value.shape[0] == 4 && value.shape[1] == 0 && value.shape[2] == 5);
    coder_close(&c);
}

static void one_dimension_of_an_array_may_be_any(void **state) {
    static const uint64_t shapes[][2] = {{0, 2}, {1, 2}, {7, 2}};
    static const int16_t elements[14] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    int16_t stored[14];
    coder c = coder_open("array(int16,-1,2)");
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    memcpy(stored, elements, sizeof stored);
    turn_elements(stored, sizeof stored, 2);
    for (size_t i = 0; i < 3; i++) {
        size_t size = (size_t)shapes[i][0] * 4;
        assert_ok(coder_encode(
            &c, bags_array(BAGS_DTYPE_INT16, 2, shapes[i], elements), &blob));
        assert_bytes(blob, stored, size);
        for (size_t offset = 0; offset < 2; offset++) {
            unsigned char space[64];
            if (size)
                memcpy(space + offset, stored, size);
            assert_ok(coder_decode(&c, space + offset, size, &value));
            assert_true(value.shape[0] == shapes[i][0] && value.shape[1] == 2);
            assert_int_equal(value.size, size);
            assert_true((uintptr_t)value.data % 2 == 0);
            if (size)
                assert_memory_equal(value.data, elements, size);
        }
    }
    static const uint64_t three[2] = {2, 3};
    assert_fails(BAGS_ERROR_VALUE,
        coder_encode(&c, bags_array(BAGS_DTYPE_INT16, 2, three, elements), &blob));
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, elements, 6, &value));
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, elements, 1, &value));
    coder_close(&c);
}

/* What is written must be readable: next to a dimension of 0, a dimension of -1
 * cannot be determined. */
static void encoded_arrays_decode_to_the_same_value(void **state) {
    static const uint64_t shape[2] = {5, 0};
    coder c;
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    if (coder_try(&c, "array(uint8,-1,0)")) {
        bags_buffer_free(&c.scratch);
        return;
    }
    if (!coder_encode(&c, bags_array(BAGS_DTYPE_UINT8, 2, shape, NULL), &blob)) {
        assert_ok(coder_decode(&c, blob.data, blob.size, &value));
        assert_true(value.shape[0] == 5 && value.shape[1] == 0);
    }
    coder_close(&c);
}

static void self_describing_arrays_are_written_as_granular_writes_them(void **state) {
    static const uint64_t shape[2] = {2, 3};
    static const float elements[6] = {0, 1, 2, 3, 4, 5};
    static const char expected[] =
        "\x93\xa3<f4\x92\x02\x03\xc4\x18"
        "\0\0\0\0\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40\0\0\xa0\x40";
    coder c = coder_open("array");
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    assert_ok(
        coder_encode(&c, bags_array(BAGS_DTYPE_FLOAT32, 2, shape, elements), &blob));
    assert_bytes(blob, expected, sizeof expected - 1);
    assert_ok(coder_decode(&c, expected, sizeof expected - 1, &value));
    assert_int_equal(value.dtype, BAGS_DTYPE_FLOAT32);
    assert_true(value.dims == 2 && value.shape[0] == 2 && value.shape[1] == 3);
    assert_memory_equal(value.data, elements, sizeof elements);
    static const uint64_t bytes_shape[1] = {3};
    static const struct {
        bags_dtype dtype;
        const char *head;
    } rows[] = {{BAGS_DTYPE_BOOL, "\x93\xa3|b1\x91\x03\xc4\x03"},
        {BAGS_DTYPE_UINT8, "\x93\xa3|u1\x91\x03\xc4\x03"},
        {BAGS_DTYPE_INT8, "\x93\xa3|i1\x91\x03\xc4\x03"},
        {BAGS_DTYPE_UINT16, "\x93\xa3<u2\x91\x03\xc4\x06"},
        {BAGS_DTYPE_INT64, "\x93\xa3<i8\x91\x03\xc4\x18"},
        {BAGS_DTYPE_FLOAT16, "\x93\xa3<f2\x91\x03\xc4\x06"},
        {BAGS_DTYPE_COMPLEX64, "\x93\xa3<c8\x91\x03\xc4\x18"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static const uint64_t data[3] = {0x0101010101010101u, 0, 1};
        assert_ok(
            coder_encode(&c, bags_array(rows[i].dtype, 1, bytes_shape, data), &blob));
        assert_int_equal(blob.size, 9 + 3 * bags_dtype_size(rows[i].dtype));
        assert_memory_equal(blob.data, rows[i].head, 9);
    }
    coder_close(&c);
}

static void self_describing_arrays_of_every_size_decode_to_the_same_value(
    void **state) {
    static const size_t sizes[] = {0, 1, 127, 128, 255, 256, 65535, 65536, 70000};
    unsigned char *data = (unsigned char *)malloc(70000);
    coder c = coder_open("array");
    (void)state;
    fill(data, 70000, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t shape[1];
        shape[0] = sizes[i];
        bags_view blob = {NULL, 0};
        bags_value value;
        assert_ok(
            coder_encode(&c, bags_array(BAGS_DTYPE_UINT8, 1, shape, data), &blob));
        size_t width = sizes[i] < 256 ? 1 : sizes[i] < 65536 ? 2 : 4;
        size_t number = sizes[i] < 128 ? 1 : 1 + width;
        assert_int_equal(blob.size, 6 + number + 1 + width + sizes[i]);
        unsigned char *copy = (unsigned char *)malloc(blob.size);
        memcpy(copy, blob.data, blob.size);
        assert_ok(coder_decode(&c, copy, blob.size, &value));
        assert_true(value.shape[0] == sizes[i]);
        assert_memory_equal(value.data, data, sizes[i]);
        free(copy);
    }
    free(data);
    coder_close(&c);
}

static void arrays_in_the_other_byte_order_are_swapped(void **state) {
    coder c = coder_open("array");
    bags_value value;
    (void)state;
    assert_ok(
        coder_decode(&c, "\x93\xa3>u2\x91\x02\xc4\x04\x01\x02\x03\x04", 13, &value));
    assert_int_equal(value.dtype, BAGS_DTYPE_UINT16);
    const uint16_t *two = (const uint16_t *)value.data;
    assert_int_equal(two[0], 0x0102);
    assert_int_equal(two[1], 0x0304);
    assert_ok(
        coder_decode(&c, "\x93\xa3>f8\x90\xc4\x08\x40\x04\0\0\0\0\0\0", 16, &value));
    double number;
    memcpy(&number, value.data, 8);
    assert_true(number == 2.5);
    assert_ok(coder_decode(&c, "\x93\xa3>u1\x91\x02\xc4\x02\x01\x02", 11, &value));
    assert_memory_equal(value.data, "\x01\x02", 2);
    assert_ok(
        coder_decode(&c, "\x93\xa3<i4\x91\x01\xc4\x04\xfe\xff\xff\xff", 13, &value));
    int32_t four;
    memcpy(&four, value.data, 4);
    assert_int_equal(four, -2);
    /* Each part of a complex number is swapped. */
    double parts[2];
    assert_ok(coder_decode(&c,
        "\x93\xa4>c16\x90\xc4\x10"
        "\x40\x04\0\0\0\0\0\0\xbf\xf0\0\0\0\0\0\0",
        25, &value));
    assert_int_equal(value.dtype, BAGS_DTYPE_COMPLEX128);
    memcpy(parts, value.data, 16);
    assert_true(parts[0] == 2.5 && parts[1] == -1);
    coder_close(&c);
}

static void complex_numbers_are_two_floats(void **state) {
    static const uint64_t shape[] = {2};
    static const float numbers[] = {1, -2, 0.5f, 0};
    unsigned char little[16];
    coder c = coder_open("array(complex64,2)");
    bags_view blob = {NULL, 0};
    bags_value value;
    (void)state;
    memcpy(little, numbers, 16);
    turn_elements(little, 16, 4);
    assert_ok(
        coder_encode(&c, bags_array(BAGS_DTYPE_COMPLEX64, 1, shape, numbers), &blob));
    assert_bytes(blob, little, 16);
    /* At an address that is not aligned for any float. */
    unsigned char odd[17];
    memcpy(odd + 1, little, 16);
    assert_ok(coder_decode(&c, odd + 1, 16, &value));
    assert_int_equal(value.dtype, BAGS_DTYPE_COMPLEX64);
    assert_true((uintptr_t)value.data % sizeof(float) == 0);
    assert_true(value.size == 16 && value.dims == 1 && value.shape[0] == 2);
    assert_memory_equal(value.data, numbers, 16);
    assert_fails(BAGS_ERROR_VALUE,
        coder_encode(&c, bags_array(BAGS_DTYPE_FLOAT32, 1, shape, numbers), &blob));
    assert_fails(BAGS_ERROR_CORRUPT, coder_decode(&c, little, 15, &value));
    coder_close(&c);
}

static void self_describing_arrays_in_longer_msgpack_forms_are_read(void **state) {
    /* array16, str8, array32, a signed and a 64-bit dimension, bin32 */
    static const char blob[] = "\xdc\x00\x03\xd9\x03<u2\xdd\0\0\0\x02\xd0\x01"
                               "\xcf\0\0\0\0\0\0\0\x02\xc6\0\0\0\x04\x01\0\x02\0";
    coder c = coder_open("array");
    bags_value value;
    (void)state;
    assert_ok(coder_decode(&c, blob, sizeof blob - 1, &value));
    assert_true(value.dims == 2 && value.shape[0] == 1 && value.shape[1] == 2);
    const uint16_t *numbers = (const uint16_t *)value.data;
    assert_true(numbers[0] == 1 && numbers[1] == 2);
    coder_close(&c);
}

static void hostile_self_describing_arrays_are_refused(void **state) {
    static const struct {
        const char *blob;
        size_t size;
    } rows[] = {
        {"", 0},
        {"\x93", 1},
        {"\x92\xa3<f4\x90", 6},
        {"\x94\xa3<f4\x90\xc4\x04\0\0\0\0\x01", 13},
        {"\x93\xa3<f4", 5},
        {"\x93\xa3<f4\x91", 6},
        {"\x93\xa3<f4\x91\x02\xc4\x04\0\0\0\0", 13},   /* 8 bytes expected */
        {"\x93\xa3<f4\x91\x01\xc4\x05\0\0\0\0\0", 14}, /* 4 bytes expected */
        {"\x93\xa3<f4\x91\x01\xc4\x04\0\0\0", 12},     /* truncated */
        {"\x93\xa3<f4\x91\x01\xc4\x04\0\0\0\0\0", 14}, /* trailing bytes */
        {"\x93\xa3<f4\x91\xff\xc4\x00", 9},            /* dimension -1 */
        {"\x93\xa3<f4\x91\xd0\x80\xc4\x00", 10},
        {"\x93\xa3<f4\x91\xca\0\0\0\0\xc4\x00", 13}, /* a float */
        {"\x93\xa3<f4\x91\xc0\xc4\x00", 9},          /* nil */
        {"\x93\xa3<f3\x91\x01\xc4\x04\0\0\0\0", 13},
        {"\x93\xa3|O8\x91\x01\xc4\x08\0\0\0\0\0\0\0\0", 17},
        {"\x93\xa4<U16\x91\x00\xc4\x00", 10},
        {"\x93\xc4\x03<f4\x91\x01\xc4\x04\0\0\0\0", 14}, /* dtype as bin */
        {"\x93\xa3<f4\x91\x01\xa4\0\0\0\0", 12},         /* data as str */
        {"\x93\xa0\x90\xc4\x00", 5},
        {"\x93\xa3<f4\xdd\xff\xff\xff\xff\xc4\x00", 12},
        {"\x93\xa3<f4\xdc\xff\xff\xc4\x00", 10},
        /* products that wrap around to 0 and to 4 */
        {"\x93\xa3|u1\x92\xcf\x80\0\0\0\0\0\0\0\x02\xc4\x00", 18},
        {"\x93\xa3<f4\x91\xcf\x40\0\0\0\0\0\0\x01\xc4\x04\0\0\0\0", 21},
        {"\x93\xa3|u1\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xc6\xff\xff"
         "\xff\xff",
            20},
        {"\x93\xa3|u1\x91\x01\xc6\xff\xff\xff\xff", 12},
        {"\x80", 1},
        {"\xc0", 1},
        {"\xdd\xff\xff\xff\xff", 5},
    };
    coder c = coder_open("array");
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bags_value value;
        unsigned char *copy = (unsigned char *)malloc(rows[i].size + 1);
        memcpy(copy, rows[i].blob, rows[i].size);
        copy = (unsigned char *)realloc(copy, rows[i].size ? rows[i].size : 1);
        poison();
        bags_code code = coder_decode(&c, copy, rows[i].size, &value);
        if (code != BAGS_ERROR_CORRUPT && code != BAGS_ERROR_VALUE &&
            code != BAGS_ERROR_LIMIT)
            fail_msg("row %zu gives %s", i, bags_code_name(code));
        assert_int_equal(said.code, code);
        free(copy);
    }
    coder_close(&c);
    assert_true(memory.peak < 1 << 16);
}

static void a_codec_that_runs_out_of_memory_reports_it(void **state) {
    static const char *const types[] = {
        "int", "int(4)", "i64", "array", "array(int16,-1)", "array(int16,2)"};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        coder c;
        memory.fail_at = memory.calls + 1;
        assert_fails(BAGS_ERROR_MEMORY, coder_try(&c, types[i]));
        bags_buffer_free(&c.scratch);
    }
    static const uint64_t shape[1] = {2};
    coder c = coder_open("array");
    bags_view blob = {NULL, 0};
    memory.fail_at = memory.calls + 1;
    assert_fails(BAGS_ERROR_MEMORY,
        coder_encode(&c, bags_array(BAGS_DTYPE_UINT8, 1, shape, "ab"), &blob));
    assert_null(blob.data);
    coder_close(&c);
}

/* ---- registry ---- */

static bags_code shout_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    (void)state;
    bags_code code = bags_buffer_reserve(scratch, value->size + 1, err);
    if (code)
        return code;
    const char *from = (const char *)value->data;
    for (size_t i = 0; i < value->size; i++)
        scratch->data[i] = (unsigned char)(from[i] & ~0x20);
    blob->data = scratch->data;
    blob->size = value->size;
    return BAGS_OK;
}

static bags_view view(const char *text) {
    bags_view name;
    name.data = (const unsigned char *)text;
    name.size = strlen(text);
    return name;
}

static void a_registry_finds_the_codec_that_was_added_last(void **state) {
    bags_codec first = {"shout cry", NULL, shout_encode, NULL, NULL, NULL, NULL};
    bags_codec second = {"utf8", NULL, shout_encode, NULL, NULL, NULL, NULL};
    bags_codec third = {"cry", NULL, shout_encode, NULL, NULL, &second, NULL};
    bags_registry *codecs;
    (void)state;
    assert_opens(codecs, bags_registry_create(&memory.allocator, &said));
    const bags_codec *built_in = bags_registry_find(codecs, view("utf8"));
    assert_non_null(built_in);
    assert_ptr_equal(bags_registry_find(NULL, view("utf8"))->encode, built_in->encode);
    assert_null(bags_registry_find(codecs, view("shout")));
    assert_ok(bags_registry_add(codecs, &first, &said));
    first.encode = NULL; /* the codec was copied */
    assert_true(bags_registry_find(codecs, view("shout"))->encode == shout_encode);
    assert_true(bags_registry_find(codecs, view("cry"))->encode == shout_encode);
    assert_null(bags_registry_find(codecs, view("shout cry")));
    assert_null(bags_registry_find(codecs, view("shou")));
    assert_null(bags_registry_find(codecs, view("cr")));
    assert_null(bags_registry_find(codecs, view("hout")));
    assert_null(bags_registry_find(codecs, view("")));
    assert_null(bags_registry_find(codecs, view(" ")));
    assert_ok(bags_registry_add(codecs, &second, &said));
    assert_ok(bags_registry_add(codecs, &third, &said));
    assert_true(bags_registry_find(codecs, view("utf8"))->encode == shout_encode);
    assert_ptr_equal(bags_registry_find(codecs, view("cry"))->user, &second);
    assert_null(bags_registry_find(codecs, view("shout"))->user);
    assert_true(bags_registry_find(NULL, view("utf8"))->encode != shout_encode);
    for (int i = 0; i < 100; i++)
        assert_ok(bags_registry_add(codecs, &third, &said));
    bags_registry_free(codecs);
    bags_registry_free(NULL);
}

static void a_registry_contains_the_built_in_types(void **state) {
    static const char *const names[] = {"bytes", "utf8", "int", "i64", "u64", "array"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const bags_codec *codec = bags_registry_find(NULL, view(names[i]));
        assert_non_null(codec);
        assert_non_null(codec->encode);
        assert_non_null(codec->decode);
    }
    assert_null(bags_registry_find(NULL, view("jpeg")));
    assert_null(bags_registry_find(NULL, view("int i64")));
    assert_null(bags_registry_find(NULL, view("INT")));
}

static void a_codec_without_a_name_is_refused(void **state) {
    bags_codec nameless = {NULL, NULL, shout_encode, NULL, NULL, NULL, NULL};
    bags_codec empty = {"", NULL, shout_encode, NULL, NULL, NULL, NULL};
    bags_registry *codecs;
    (void)state;
    assert_opens(codecs, bags_registry_create(&memory.allocator, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_registry_add(codecs, &nameless, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_registry_add(codecs, &empty, &said));
    assert_fails(BAGS_ERROR_ARGUMENT, bags_registry_add(codecs, NULL, &said));
    memory.fail_at = memory.calls + 1;
    bags_codec good = {"good", NULL, shout_encode, NULL, NULL, NULL, NULL};
    assert_fails(BAGS_ERROR_MEMORY, bags_registry_add(codecs, &good, &said));
    assert_null(bags_registry_find(codecs, view("good")));
    memory.fail_at = memory.calls + 1;
    assert_refused(BAGS_ERROR_MEMORY, bags_registry_create(&memory.allocator, &said));
    bags_registry_free(codecs);
}

static void a_number_is_in_both_uint_and_sint_if_it_fits(void **state) {
    (void)state;
    assert_true(bags_int(7).uint == 7 && bags_int(7).sint == 7);
    assert_true(bags_uint(7).uint == 7 && bags_uint(7).sint == 7);
    assert_true(bags_uint(INT64_MAX).sint == INT64_MAX);
    assert_true(bags_int(INT64_MAX).uint == (uint64_t)INT64_MAX);
    assert_true(bags_int(-7).sint == -7);
    assert_true(bags_uint(UINT64_MAX).uint == UINT64_MAX);
}

/* ---- one value by its type ---- */

static void a_value_is_encoded_and_decoded_by_its_type(void **state) {
    static const uint64_t shape[] = {2, 3};
    static const uint16_t numbers[] = {1, 2, 3, 4, 5, 6};
    static const char *const arrays[] = {
        "array", "array(uint16,2,3)", "array(uint16,2,3)[]", "array(uint16,-1,3)"};
    bags_buffer to = {NULL, 0, NULL, NULL}, from = {NULL, 0, NULL, NULL};
    bags_view blob;
    bags_value value = bags_array(BAGS_DTYPE_UINT16, 2, shape, numbers), got;
    (void)state;
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        assert_ok(bags_encode(NULL, arrays[i], &value, &to, &blob, &said));
        assert_ok(bags_decode(NULL, arrays[i], blob, &from, &got, &said));
        assert_int_equal(got.kind, BAGS_KIND_ARRAY);
        assert_int_equal(got.dtype, BAGS_DTYPE_UINT16);
        /* The shape does not belong to the codec's state, which is freed. */
        assert_true(got.dims == 2 && got.shape[0] == 2 && got.shape[1] == 3);
        assert_memory_equal(got.data, numbers, sizeof numbers);
    }
    value = bags_utf8("text");
    assert_ok(bags_encode(NULL, "utf8", &value, &to, &blob, &said));
    assert_text(blob, "text");
    assert_ok(bags_decode(NULL, "utf8[]", blob, &from, &got, &said));
    assert_true(got.kind == BAGS_KIND_UTF8 && got.size == 4);
    value = bags_int(300);
    assert_ok(bags_encode(NULL, "int", &value, &to, &blob, &said));
    assert_ok(bags_decode(NULL, "int", blob, &from, &got, &said));
    assert_true(got.uint == 300 && got.sint == 300);
    /* An encoded blob is stored as it is. */
    value = bags_blob("any", 3);
    assert_ok(bags_encode(NULL, "int(4)", &value, &to, &blob, &said));
    assert_text(blob, "any");
    bags_buffer_free(&to);
    bags_buffer_free(&from);
}

static void values_and_blobs_that_do_not_fit_the_type_are_errors(void **state) {
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_view blob = {(const unsigned char *)"12345", 5};
    bags_value value = bags_int(300);
    (void)state;
    assert_fails(
        BAGS_ERROR_VALUE, bags_encode(NULL, "int(1)", &value, &scratch, &blob, &said));
    assert_fails(
        BAGS_ERROR_VALUE, bags_encode(NULL, "utf8", &value, &scratch, &blob, &said));
    assert_fails(
        BAGS_ERROR_TYPE, bags_encode(NULL, "int(", &value, &scratch, &blob, &said));
    assert_fails(
        BAGS_ERROR_TYPE, bags_encode(NULL, "jpeg", &value, &scratch, &blob, &said));
    assert_fails(
        BAGS_ERROR_TYPE, bags_encode(NULL, "int(one)", &value, &scratch, &blob, &said));
    assert_bytes(blob, "12345", 5);
    value.kind = BAGS_KIND_NONE;
    assert_fails(
        BAGS_ERROR_VALUE, bags_encode(NULL, "int", &value, &scratch, &blob, &said));
    assert_fails(
        BAGS_ERROR_CORRUPT, bags_decode(NULL, "int(4)", blob, &scratch, &value, &said));
    assert_fails(BAGS_ERROR_TYPE, bags_decode(NULL, "", blob, &scratch, &value, &said));
    assert_fails(
        BAGS_ERROR_TYPE, bags_decode(NULL, "jpeg", blob, &scratch, &value, &said));
    assert_int_equal(
        bags_decode(NULL, "int(4)", blob, &scratch, &value, NULL), BAGS_ERROR_CORRUPT);
    bags_buffer_free(&scratch);
}

static void a_value_is_encoded_by_the_given_registry(void **state) {
    static const bags_codec shout = {
        "shout", NULL, shout_encode, NULL, NULL, NULL, NULL};
    bags_buffer scratch = {NULL, 0, NULL, NULL};
    bags_value value = bags_utf8("loud");
    bags_view blob;
    bags_registry *registry;
    (void)state;
    assert_opens(registry, bags_registry_create(&memory.allocator, &said));
    assert_fails(BAGS_ERROR_TYPE,
        bags_encode(registry, "shout", &value, &scratch, &blob, &said));
    assert_ok(bags_registry_add(registry, &shout, &said));
    assert_ok(bags_encode(registry, "shout", &value, &scratch, &blob, &said));
    /* Without a decoder, blobs can still be read. */
    assert_fails(
        BAGS_ERROR_TYPE, bags_decode(registry, "shout", blob, &scratch, &value, &said));
    value = bags_uint(1);
    assert_ok(bags_encode(registry, "int(2)", &value, &scratch, &blob, &said));
    assert_bytes(blob, "\1\0", 2);
    bags_registry_free(registry);
    bags_buffer_free(&scratch);
}

/* ---- numbers as arrays of one element ---- */

static void check_scalar(
    const char *type, bags_value value, uint64_t expected, size_t size) {
    bags_buffer scratch = {0};
    bags_view blob;
    poison();
    bags_code code = bags_encode(NULL, type, &value, &scratch, &blob, &said);
    if (code || blob.size != size ||
        bags_load_bytes(blob.data, size, false) != expected)
        fail_msg("%s: %s", type, code ? said.message : "other bytes");
    bags_buffer_free(&scratch);
}

static void refuse_scalar(const char *type, bags_value value, const char *says) {
    bags_buffer scratch = {0};
    bags_view blob;
    assert_fails(
        BAGS_ERROR_VALUE, bags_encode(NULL, type, &value, &scratch, &blob, &said));
    assert_says(says);
    bags_buffer_free(&scratch);
}

static void numbers_are_arrays_of_one_element(void **state) {
    /* Of float16: ties to even, the border of normal and subnormal numbers, and the
     * largest number, from the IEEE 754 format. */
    static const struct {
        double number;
        uint64_t bits;
    } halves[] = {{0, 0}, {-0.0, 0x8000}, {1, 0x3C00}, {-2, 0xC000}, {1.5, 0x3E00},
        {0.1, 0x2E66}, {1.00048828125, 0x3C00}, {1.00146484375, 0x3C02},
        {1.000488281250001, 0x3C01}, {65504, 0x7BFF}, {65519.99, 0x7BFF},
        {6.103515625e-05, 0x0400}, {6.097555160522461e-05, 0x03FF},
        {6.1005353927612305e-05, 0x0400}, {5.960464477539063e-08, 1},
        {2.9802322387695312e-08, 0}, {2.9802322387695316e-08, 1},
        {8.940696716308594e-08, 2}, {1e-30, 0}, {-1e-300, 0x8000}, {HUGE_VAL, 0x7C00},
        {-HUGE_VAL, 0xFC00}};
    (void)state;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        check_scalar("float16", bags_real(halves[i].number), halves[i].bits, 2);
    check_scalar("float32", bags_real(0.1), 0x3DCCCCCD, 4);
    check_scalar("float32", bags_real(-HUGE_VAL), 0xFF800000, 4);
    check_scalar("float32", bags_real(3.4028235677973362e38), 0x7F7FFFFF, 4);
    check_scalar("array(float64)", bags_real(0.1), UINT64_C(0x3FB999999999999A), 8);
    check_scalar("float64", bags_real(1e308), UINT64_C(0x7FE1CCF385EBC8A0), 8);
    check_scalar("bool", bags_bool(true), 1, 1);
    check_scalar("array(bool)", bags_bool(false), 0, 1);
    check_scalar("uint8", bags_int(255), 255, 1);
    check_scalar("int8", bags_int(-128), 0x80, 1);
    check_scalar("int16", bags_uint(32767), 32767, 2);
    check_scalar("int64", bags_int(INT64_MIN), (uint64_t)1 << 63, 8);
    check_scalar("uint64", bags_uint(UINT64_MAX), UINT64_MAX, 8);
    refuse_scalar("float16", bags_real(65520), "out of range for float16 (65520)");
    refuse_scalar("float32", bags_real(-1e39), "out of range for float32 (-1e+39)");
    refuse_scalar("uint8", bags_int(256), "for uint8 (256, maximum 255)");
    refuse_scalar("uint8", bags_int(-1), "for uint8 (-1)");
    refuse_scalar("int8", bags_int(-129), "for int8 (-129)");
    refuse_scalar("int64", bags_uint((uint64_t)1 << 63), "maximum 9223372036854775807");
    refuse_scalar("float32", bags_int(1), "kind mismatch (number, expected array)");
    refuse_scalar("int32", bags_real(1), "(real number, expected array)");
    refuse_scalar("float32", bags_bool(true), "(bool, expected array)");
    refuse_scalar("bool", bags_int(1), "(number, expected array)");
    refuse_scalar("complex64", bags_real(1), "(real number, expected array)");
    refuse_scalar("float32(1)", bags_real(1), "(real number, expected array)");
    refuse_scalar("array", bags_real(1), "(real number, expected array)");
    refuse_scalar("utf8", bags_real(1), "(real number, expected text)");
}

static void a_nan_stays_one(void **state) {
    static const char *const types[] = {"float16", "float32", "float64"};
    static const uint64_t exponents[] = {
        0x7C00, 0x7F800000, UINT64_C(0x7FF0000000000000)};
    bags_value nan = bags_real(HUGE_VAL - HUGE_VAL);
    bags_buffer scratch = {0};
    bags_view blob;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        assert_ok(bags_encode(NULL, types[i], &nan, &scratch, &blob, &said));
        uint64_t bits = bags_load_bytes(blob.data, blob.size, false);
        uint64_t fraction = (exponents[i] & (0 - exponents[i])) - 1;
        assert_true((bits & exponents[i]) == exponents[i] && (bits & fraction));
    }
    bags_buffer_free(&scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(valid_type_strings_are_parsed),
        TEST(invalid_type_strings_are_refused),
        TEST(the_message_about_a_type_of_any_length_is_utf8),
        TEST(arguments_are_found_by_index),
        TEST(numeric_arguments_are_decimal_and_fit_64_bits),
        TEST(dtypes_are_parsed_in_every_numpy_spelling),
        TEST(other_dtype_names_are_refused),
        TEST(dtypes_have_names_codes_and_sizes),
        TEST(the_size_of_an_array_is_the_size_of_its_elements),
        TEST(the_bytes_of_elements_are_swapped),
        TEST(numbers_are_loaded_and_stored_in_both_byte_orders),
        TEST(a_view_is_a_text_only_if_all_bytes_are_equal),
        TEST(every_code_has_a_distinct_name),
        TEST(bags_fail_writes_and_truncates_its_message),
        TEST(a_remedy_is_the_formats_and_none_of_a_name),
        TEST(an_error_inside_of_another_keeps_its_remedy),
        TEST(a_buffer_grows_by_half_and_keeps_its_content),
        TEST(bytes_are_stored_as_given),
        TEST(utf8_accepts_only_valid_text),
        TEST(every_python_version_reads_the_same_int),
        TEST(integers_are_encoded_as_documented),
        TEST(i64_is_signed),
        TEST(integers_that_do_not_fit_are_refused),
        TEST(integer_blobs_above_64_bits_are_too_large),
        TEST(codecs_refuse_values_of_the_wrong_kind),
        TEST(invalid_arguments_of_built_in_types_are_refused),
        TEST(valid_arguments_without_a_built_in_codec_are_refused),
        TEST(more_dimensions_than_an_array_may_have_are_refused),
        TEST(shapes_that_overflow_are_refused),
        TEST(arrays_of_a_fixed_shape_are_stored_as_their_elements),
        TEST(arrays_of_another_shape_or_dtype_are_refused),
        TEST(data_that_is_null_or_of_another_size_is_refused),
        TEST(an_array_without_dimensions_is_one_element),
        TEST(an_array_with_a_dimension_of_0_is_empty),
        TEST(one_dimension_of_an_array_may_be_any),
        TEST(encoded_arrays_decode_to_the_same_value),
        TEST(self_describing_arrays_are_written_as_granular_writes_them),
        TEST(self_describing_arrays_of_every_size_decode_to_the_same_value),
        TEST(arrays_in_the_other_byte_order_are_swapped),
        TEST(complex_numbers_are_two_floats),
        TEST(self_describing_arrays_in_longer_msgpack_forms_are_read),
        TEST(hostile_self_describing_arrays_are_refused),
        TEST(a_codec_that_runs_out_of_memory_reports_it),
        TEST(a_registry_finds_the_codec_that_was_added_last),
        TEST(a_registry_contains_the_built_in_types),
        TEST(a_codec_without_a_name_is_refused),
        TEST(a_number_is_in_both_uint_and_sint_if_it_fits),
        TEST(a_value_is_encoded_and_decoded_by_its_type),
        TEST(values_and_blobs_that_do_not_fit_the_type_are_errors),
        TEST(a_value_is_encoded_by_the_given_registry),
        TEST(numbers_are_arrays_of_one_element),
        TEST(a_nan_stays_one),
    };
    return cmocka_run_group_tests_name("types", tests, NULL, NULL);
}
