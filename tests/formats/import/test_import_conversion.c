/* Values of a source stored as values of other types. */
// flavours: test: asan; check: release
#include "import_check.h"

static bags_code pack(
    bags_view json, bags_buffer *scratch, bags_view *msgpack, bags_error *err) {
    (void)err;
    assert_int_equal(bags_buffer_reserve(scratch, 1, NULL), 0);
    scratch->data[0] = (unsigned char)json.size; /* a positive fixnum */
    msgpack->data = scratch->data;
    msgpack->size = 1;
    return BAGS_OK;
}

static const bags_conversion_options options = {NULL, pack};

/* Convert an entry's first value. Returns the encoded result in hexadecimal, or the
 * error's message. Valid until the next call. */
static const char *convert_all(
    const char *from, const char *to, const bags_value *values, size_t count) {
    static char text[200];
    static bags_error err;
    static bags_buffer scratch;
    bags_entry entry = {"x", values, count};
    bags_value out;
    bags_view blob;
    size_t found = 0;
    bags_conversion *conversion = bags_conversion_open(from, to, &options, &err);
    if (!conversion)
        return err.message;
    bags_code code = bags_conversion_count(conversion, &entry, &found, &err);
    if (!code)
        code = bags_conversion_get(conversion, &entry, 0, &out, &err);
    if (!code)
        code = bags_encode(NULL, to ? to : from, &out, &scratch, &blob, &err);
    text[0] = '\0';
    for (size_t i = 0; !code && i < blob.size && i < 90; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", blob.data[i]);
    bags_buffer_free(&scratch);
    bags_conversion_close(conversion);
    return code ? err.message : text;
}

static const char *convert(const char *from, const char *to, bags_value value) {
    return convert_all(from, to, &value, 1);
}

static const char *of_text(const char *to, const char *text) {
    return convert("utf8", to, bags_utf8(text));
}

static void text_becomes_numbers_elements_and_msgpack(void **state) {
    (void)state;
    assert_string_equal(of_text("int(2)", "258"), "0201");
    assert_string_equal(of_text("i64", "-9223372036854775808"), "0000000000000080");
    assert_string_equal(of_text("u64", "18446744073709551615"), "ffffffffffffffff");
    assert_string_equal(of_text("array(bool)", "true"), "01");
    assert_string_equal(of_text("int16", "-2"), "feff");
    assert_string_equal(of_text("array(float32)", "0.5"), "0000003f");
    assert_string_equal(of_text("float64", "nan"), "000000000000f87f");
    assert_string_equal(of_text("array(float32)", "inf"), "0000807f");
    assert_string_equal(of_text("bytes", "ab"), "6162");
    assert_non_null(strstr(of_text("i64", "-9223372036854775809"), "64 bits"));
    assert_non_null(strstr(of_text("u64", "18446744073709551616"), "64 bits"));
    assert_non_null(strstr(of_text("u64", ""), "is not a number"));
    assert_non_null(strstr(of_text("u64", "1 "), "is not a number"));
    assert_non_null(strstr(of_text("array(float32)", "16777217"), "rounded"));
    assert_non_null(strstr(of_text("array(float64)", "1e999"), "too large"));
    assert_non_null(strstr(of_text("array(float32)", "0x1"), "is not a number"));
    assert_non_null(strstr(of_text("array(uint8)", "256"), "out of range"));
    assert_non_null(strstr(of_text("array(uint8)", "1.0"), "not a whole number"));
    assert_non_null(strstr(of_text("array(bool)", "1"), "not true or false"));
    assert_non_null(strstr(of_text("array", "1"), "only numbers and msgpack"));
    assert_non_null(strstr(of_text("int(0)", "1"), "int(0)"));
}

static void integers_become_other_integers(void **state) {
    uint64_t shape[] = {2};
    const int16_t pair[] = {-1, 300}, one[] = {-5};
    bags_value numbers[] = {bags_int(-1), bags_uint(7)};
    bags_value array = bags_array(BAGS_DTYPE_INT16, 1, shape, pair);
    const char *type = "array(int16,2)";
    (void)state;
    assert_string_equal(convert(type, "array(int32,2)", array), "ffffffff2c010000");
    assert_non_null(
        strstr(convert(type, "array(int8,2)", array), "[1]: 300 is out of range"));
    assert_non_null(
        strstr(convert(type, "array(uint16,2)", array), "[0]: -1 is out of range"));
    assert_non_null(strstr(convert(type, "i64", array), "expected number"));
    array = bags_array(BAGS_DTYPE_INT16, 0, NULL, one);
    assert_string_equal(convert("array(int16)", "i64", array), "fbffffffffffffff");
    assert_string_equal(
        convert_all("i64[]", "array(int16,-1)", numbers, 2), "ffff0700");
    assert_string_equal(convert_all("i64[]", "array(int16,-1)", numbers, 0), "");
    assert_non_null(strstr(convert_all("i64[]", "i64", numbers, 2), "2 items"));
}

static void values_are_unchanged_without_a_type(void **state) {
    (void)state;
    assert_string_equal(convert("utf8", NULL, bags_utf8("7")), "37");
    assert_string_equal(convert("i64", NULL, bags_int(1)), "0100000000000000");
    assert_null(bags_conversion_open(NULL, "int", NULL, NULL));
    assert_null(bags_conversion_open("utf8", "a b", NULL, NULL));
    bags_conversion_close(NULL);
}

static void json_needs_the_function_that_packs(void **state) {
    bags_value text = bags_utf8("[1]"), out;
    bags_entry entry = {"x", &text, 1};
    bags_error err;
    (void)state;
    for (int with = 0; with < 2; with++) {
        bags_conversion *conversion =
            bags_conversion_open("utf8", "msgpack", with ? &options : NULL, &err);
        assert_non_null(conversion);
        bags_code code = bags_conversion_get(conversion, &entry, 0, &out, &err);
        assert_int_equal(code, with ? BAGS_OK : BAGS_ERROR_TYPE);
        assert_true(!with || (out.kind == BAGS_KIND_BLOB && out.size == 1 &&
                                 *(const unsigned char *)out.data == 3));
        bags_conversion_close(conversion);
    }
}

static void the_importer_is_told_what_is_needed(void **state) {
    (void)state;
    assert_int_equal(bags_conversion_want("int(4)"), BAGS_WANT_NUMBER);
    assert_int_equal(bags_conversion_want("float32"), BAGS_WANT_NUMBER);
    assert_int_equal(bags_conversion_want("array(bool)[]"), BAGS_WANT_NUMBER);
    assert_int_equal(bags_conversion_want("zstd(utf8)"), BAGS_WANT_TEXT);
    assert_int_equal(bags_conversion_want("jpeg"), BAGS_WANT_TEXT);
    assert_int_equal(bags_conversion_want("array"), BAGS_WANT_NOTHING);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_becomes_numbers_elements_and_msgpack),
        cmocka_unit_test(integers_become_other_integers),
        cmocka_unit_test(values_are_unchanged_without_a_type),
        cmocka_unit_test(json_needs_the_function_that_packs),
        cmocka_unit_test(the_importer_is_told_what_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
