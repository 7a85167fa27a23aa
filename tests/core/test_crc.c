/* The checksum itself: known values, and agreement between the CPU's
 * instructions and the tables. The implementation is compiled into this file,
 * to call both. */
// flavours: test: release; check: asan
#define BAGS_STATIC
#include "../../bags.h" /* the implementation comes before system headers */
#include "check.h"

static uint32_t crc_of(const void *data, size_t size) {
    return bags_crc32c(0, data, size);
}

static uint32_t by_tables(uint32_t crc, const unsigned char *data, size_t size) {
    return ~bagi_crc_tables(~crc, data, size);
}

/* Bit by bit, as it is defined. */
static uint32_t by_bits(uint32_t crc, const unsigned char *data, size_t size) {
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78U : 0);
    }
    return ~crc;
}

/* RFC 3720, B.4, and the check value of the catalogues of CRCs. */
static void known_crcs_are_computed(void **state) {
    static const unsigned char command[48] = {0x01, 0xC0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0,
        0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0};
    unsigned char text[32];
    (void)state;
    memset(text, 0, sizeof text);
    assert_int_equal(crc_of(text, 32), 0x8A9136AAU);
    memset(text, 0xFF, sizeof text);
    assert_int_equal(crc_of(text, 32), 0x62A8AB43U);
    for (unsigned i = 0; i < 32; i++)
        text[i] = (unsigned char)i;
    assert_int_equal(crc_of(text, 32), 0x46DD794EU);
    for (unsigned i = 0; i < 32; i++)
        text[i] = (unsigned char)(31 - i);
    assert_int_equal(crc_of(text, 32), 0x113FDB5CU);
    assert_int_equal(crc_of(command, 48), 0xD9963A56U);
    assert_int_equal(crc_of("123456789", 9), 0xE3069283U);
    assert_int_equal(crc_of("", 0), 0);
    assert_int_equal(crc_of(NULL, 0), 0);
}

static void all_crc_implementations_agree_on_any_length_and_alignment(void **state) {
    const size_t most = 60000;
    unsigned char *text = (unsigned char *)malloc(most + 16);
    uint64_t lot = 5;
    (void)state;
    fill(text, most + 16, 7);
    for (size_t i = 0; i < 4000; i++) {
        size_t size = i < 2000 ? i : (size_t)(next_random(&lot) % most);
        const unsigned char *at_byte = text + next_random(&lot) % 16;
        uint32_t before = (uint32_t)next_random(&lot);
        uint32_t one = bags_crc32c(before, at_byte, size);
        if (one != by_tables(before, at_byte, size))
            fail_msg("%d bytes: the tables do not agree", (int)size);
        if (i % 40 == 0 && one != by_bits(before, at_byte, size))
            fail_msg("%d bytes: the definition does not agree", (int)size);
    }
    free(text);
}

static void a_crc_can_be_computed_in_pieces(void **state) {
    unsigned char text[5000];
    uint64_t lot = 9;
    (void)state;
    fill(text, sizeof text, 3);
    uint32_t complete = crc_of(text, sizeof text);
    for (int i = 0; i < 500; i++) {
        size_t cut = (size_t)(next_random(&lot) % (sizeof text + 1));
        assert_int_equal(
            bags_crc32c(crc_of(text, cut), text + cut, sizeof text - cut), complete);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(known_crcs_are_computed),
        TEST(all_crc_implementations_agree_on_any_length_and_alignment),
        TEST(a_crc_can_be_computed_in_pieces),
    };
    return cmocka_run_group_tests_name("crc", tests, NULL, NULL);
}
