/*
 * Any bytes as a catalogue, after its magic and CRC: what a server may send. If it is
 * valid, all of its sizes are consistent, and the bytes of plain refs are the same in
 * every way they are read. The last bytes of the input also choose the reads.
 */
// flavours: test: asan
#include "../../formats/storage/catalogue.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds) {
    if (!holds)
        abort();
}

/* Read a plain refs.bag twice, in one step and in two, and its table. */
static void check_plain(size_t fields, uint64_t length, uint64_t bag, uint64_t random) {
    unsigned char once[512], twice[512], number[8];
    uint64_t table = catalogue_row_start(fields, length);
    uint64_t offset = random % bag, left = bag - offset;
    size_t size = (size_t)(random >> 32) % sizeof once + 1;
    size = size < left ? size : (size_t)left;
    size_t first = (size_t)(random >> 48) % (size + 1);
    demand(table + 8 * (length + 1) == bag);
    catalogue_read_plain(fields, length, offset, once, size);
    catalogue_read_plain(fields, length, offset, twice, first);
    catalogue_read_plain(fields, length, offset + first, twice + first, size - first);
    demand(memcmp(once, twice, size) == 0);
    catalogue_read_plain(fields, length, bag - 8, number, 8);
    demand(catalogue_load(number, 8) == table);
    uint64_t row = length ? random % length : 0;
    uint64_t start = catalogue_row_start(fields, row);
    catalogue_read_plain(fields, length, table + 8 * row, number, 8);
    demand(catalogue_load(number, 8) == start);
    if (row >= length)
        return;
    unsigned char own[CATALOGUE_ROW], read[CATALOGUE_ROW];
    size_t row_size = catalogue_row(fields, row, own);
    demand(catalogue_row_start(fields, row + 1) - start == row_size);
    demand(catalogue_row_at(fields, start + random % row_size) == row);
    catalogue_read_plain(fields, length, start, read, row_size);
    demand(memcmp(own, read, row_size) == 0);
}

static void check(const catalogue_view *of, size_t size, uint64_t random) {
    const char *name = of->names;
    size_t names = 0;
    demand(of->shards > 0 && of->shards <= CATALOGUE_SHARDS);
    for (size_t i = 0; i < of->fields; i++) {
        names += strlen(name) + 1;
        name += strlen(name) + 1;
    }
    demand(
        CATALOGUE_HEAD + of->spec_size + names + of->shards * of->record_size == size);
    for (uint64_t i = 0; i < of->shards; i++) {
        for (size_t k = 0; k <= of->fields; k++) {
            uint64_t bag = catalogue_size(of, i, k), table = catalogue_table(of, i, k);
            demand(table + 8 * (catalogue_length(of, i, k) + 1) == bag);
        }
        (void)catalogue_bound(of, i);
        if (catalogue_is_plain(of, i))
            check_plain(of->fields, catalogue_length(of, i, of->fields),
                catalogue_size(of, i, of->fields), random + i);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    catalogue_view of;
    uint64_t random = size >= 8 ? catalogue_load(data + size - 8, 8) : 0;
    /* At its exact size, so that a sanitizer sees what is read after it. */
    unsigned char *bytes = (unsigned char *)malloc(size + 12);
    if (!bytes)
        return 0;
    if (size > 0)
        memcpy(bytes + 12, data, size);
    memcpy(bytes, CATALOGUE_MAGIC, 8);
    catalogue_store(bytes + 8, bags_crc32c(0, data, size), 4);
    if (catalogue_parse(bytes, size + 12, &of))
        check(&of, size + 12, random * 0x9E3779B97F4A7C15u);
    bytes[8] ^= 1;
    demand(!catalogue_parse(bytes, size + 12, &of));
    free(bytes);
    return 0;
}
