/* .npz files that NumPy wrote: tests/data/arrays/make.py. */
// flavours: test: asan; check: release
#include "check.h"

#include "../../formats/formats.h"

#define DATA "tests/data/arrays/"

static const char *const members[] = {"int16", "structure", "text"};

static bags_view view(const bytes *file) {
    bags_view out = {file->data, file->size};
    return out;
}

static void members_are_the_files_that_numpy_put_in(void **state) {
    static const char *const names[] = {"stored", "deflated"};
    bags_buffer scratch = {0}, decoded = {0};
    (void)state;
    for (size_t n = 0; n < 2; n++) {
        char path[256];
        snprintf(path, sizeof path, DATA "npz/%s.npz", names[n]);
        bytes file = load(path);
        bags_npz *npz = bags_npz_open(view(&file), &said);
        assert_non_null(npz);
        assert_int_equal(bags_npz_length(npz), 3);
        for (size_t i = 0; i < 3; i++) {
            bags_view member;
            bags_value value;
            snprintf(path, sizeof path, DATA "npy/%s.npy", members[i]);
            bytes expected = load(path);
            assert_text(bags_npz_name(npz, i), members[i]);
            assert_ok(bags_npz_read(npz, i, 0, &scratch, &member, &said));
            assert_bytes(member, expected.data, expected.size);
            assert_ok(bags_npy_read(member, &decoded, &value, &said));
            assert_ok(bags_npz_read(npz, i, expected.size, &scratch, &member, &said));
            assert_fails(BAGS_ERROR_LIMIT,
                bags_npz_read(npz, i, expected.size - 1, &scratch, &member, &said));
            bytes_free(&expected);
        }
        bags_view none;
        assert_fails(
            BAGS_ERROR_RANGE, bags_npz_read(npz, 3, 0, &scratch, &none, &said));
        assert_int_equal(bags_npz_name(npz, 3).size, 0);
        bags_npz_close(npz);
        bytes_free(&file);
    }
    bags_npz_close(NULL);
    bags_buffer_free(&scratch);
    bags_buffer_free(&decoded);
}

static void an_archive_may_be_empty(void **state) {
    (void)state;
    bytes file = load(DATA "npz/empty.npz");
    bags_npz *npz = bags_npz_open(view(&file), &said);
    assert_non_null(npz);
    assert_int_equal(bags_npz_length(npz), 0);
    bags_npz_close(npz);
    bytes_free(&file);
}

/* Returns how many members could not be read, or -1 if it does not open. */
static int read_all(bags_view file) {
    bags_buffer scratch = {0};
    bags_view member;
    int bad = 0;
    bags_npz *npz = bags_npz_open(file, &said);
    if (!npz)
        return -1;
    for (size_t i = 0; i < bags_npz_length(npz); i++)
        bad += bags_npz_read(npz, i, 0, &scratch, &member, &said) != BAGS_OK;
    bags_npz_close(npz);
    bags_buffer_free(&scratch);
    return bad;
}

/* Cut anywhere it does not open; a changed element is reported by the checksum. */
static void damage_is_detected(void **state) {
    (void)state;
    bytes file = load(DATA "npz/stored.npz");
    bytes member = load(DATA "npy/int16.npy");
    for (size_t size = 0; size < file.size; size++) {
        bags_view cut = {file.data, size};
        assert_int_equal(read_all(cut), -1);
    }
    for (size_t i = 0; i < file.size; i++) {
        file.data[i] ^= 0x10;
        read_all(view(&file));
        file.data[i] ^= 0x10;
    }
    for (size_t i = 0; i + member.size <= file.size; i++)
        if (memcmp(file.data + i, member.data, member.size) == 0) {
            file.data[i + member.size - 1] ^= 1;
            assert_int_equal(read_all(view(&file)), 1);
            assert_says("damaged");
            file.data[i + member.size - 1] ^= 1;
        }
    assert_int_equal(read_all(view(&file)), 0);
    bytes_free(&file);
    bytes_free(&member);
}

static void check_refused(bags_code code, const char *name, const char *text) {
    char path[256];
    bags_buffer scratch = {0};
    bags_view member;
    snprintf(path, sizeof path, DATA "bad-npz/%s.npz", name);
    bytes file = load(path);
    bags_npz *npz = bags_npz_open(view(&file), &said);
    assert_non_null(npz);
    assert_fails(code, bags_npz_read(npz, 0, 0, &scratch, &member, &said));
    assert_says(text);
    assert_int_equal(scratch.capacity, 0);
    bags_npz_close(npz);
    bytes_free(&file);
}

static void bad_members_are_rejected_before_memory_is_allocated(void **state) {
    (void)state;
    check_refused(BAGS_ERROR_CORRUPT, "claims-2-gigabytes", "claims");
    check_refused(BAGS_ERROR_VALUE, "encrypted", "encrypted");
    check_refused(BAGS_ERROR_VALUE, "other-method", "method 12");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(members_are_the_files_that_numpy_put_in),
        TEST(an_archive_may_be_empty),
        TEST(damage_is_detected),
        TEST(bad_members_are_rejected_before_memory_is_allocated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
