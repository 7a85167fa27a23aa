/*
 * What the tests of importers share: import a source entirely and compare it with
 * NAME.expected, which tests/data/import/make_arrays.py explains; damage it.
 */
#ifndef BAGS_TESTS_IMPORT_CHECK_H
#define BAGS_TESTS_IMPORT_CHECK_H

#include "check.h"

#include "../../formats/import/import.h"

#define IMPORT_DATA "tests/data/import/"

/* Of the sources that are imported. */
static bags_source_layout import_layout;
static bags_source_header import_header;
static bool import_decode;

/* What the last one left out: "what 2 a,b;" for each kind. */
static char import_left_out[1024];

BAGI_UNUSED static void note_left_out(const bags_source *source) {
    size_t used = 0, size = sizeof import_left_out;
    *import_left_out = 0;
    for (size_t i = 0; i < source->left_out_count; i++) {
        const bags_left_out *kind = &source->left_out[i];
        used += (size_t)snprintf(import_left_out + used, size - used, "%s %llu",
            kind->what, (unsigned long long)kind->count);
        for (size_t k = 0; k < BAGS_LEFT_OUT_NAMES && kind->names[k]; k++)
            used += (size_t)snprintf(import_left_out + used, size - used, "%c%s",
                k ? ',' : ' ', kind->names[k]);
        used += (size_t)snprintf(import_left_out + used, size - used, ";");
        CHECK(used < size && kind->count > 0);
    }
}

/* What a source contains, as in NAME.expected, its fields sorted; free with
 * bytes_free. `said` has the error, and *code its code. */
static bytes import_all(
    const bags_importer *importer, const char *path, bags_code *code) {
    bytes text = {0};
    const bags_entry *entries = NULL;
    bags_buffer scratch = {0};
    uint64_t length = 0;
    poison();
    bags_source_options options = {0};
    options.allocator = &memory.allocator;
    options.layout = import_layout;
    options.header = import_header;
    options.decode = import_decode;
    bags_source *source = bags_source_open(importer, path, &options, &said);
    *code = source ? BAGS_OK : said.code;
    if (!source)
        return text;
    note_left_out(source);
    sha256 *digests = (sha256 *)calloc(source->count, sizeof *digests);
    for (size_t i = 0; i < source->count; i++)
        sha256_start(&digests[i]);
    while (!(*code = bags_source_read(source, length, &entries, &said)) && entries &&
           length < 10000) {
        for (size_t i = 0; i < source->count && !*code; i++) {
            bags_type type;
            bytes number = {0};
            CHECK(strcmp(entries[i].field, source->fields[i].name) == 0);
            CHECK(!bags_type_parse(source->fields[i].type, &type, NULL));
            if (type.sequence)
                put_u64(&number, entries[i].count);
            CHECK(type.sequence || entries[i].count == 1);
            for (size_t k = 0; k < entries[i].count && !*code; k++) {
                bags_view blob = {NULL, 0};
                const bags_value *value = &entries[i].values[k];
                if (value->kind == BAGS_KIND_BLOB) {
                    blob.data = (const unsigned char *)value->data;
                    blob.size = value->size;
                } else {
                    *code = bags_encode(
                        NULL, source->fields[i].type, value, &scratch, &blob, &said);
                }
                put_u64(&number, blob.size);
                put(&number, blob.data, blob.size);
            }
            sha256_add(&digests[i], number.data, number.size);
            bytes_free(&number);
        }
        length++;
    }
    CHECK(*code || entries || source->length == BAGS_SOURCE_UNKNOWN ||
          source->length == length);
    put_format(&text, "%llu\n", (unsigned long long)length);
    for (size_t i = 0; i < source->count; i++) {
        char hex[65];
        sha256_hex(&digests[i], hex);
        put_format(
            &text, "%s %s %s\n", source->fields[i].type, hex, source->fields[i].name);
    }
    free(digests);
    bags_buffer_free(&scratch);
    bags_source_close(source);
    put(&text, "", 1);
    return text;
}

/* Every line of `expected` is in `text`, and there are no others. */
static bool import_is(const bytes *text, const char *expected) {
    bytes file = load(expected);
    put(&file, "", 1);
    size_t lines[2] = {0, 0};
    bool same = text->size > 0;
    for (char *line = (char *)file.data, *end; same && (end = strchr(line, '\n'));
         line = end + 1) {
        *end = 0;
        lines[0]++;
        const char *found = strstr((const char *)text->data, line);
        size_t size = strlen(line);
        same = found && found[size] == '\n' &&
               (found == (const char *)text->data || found[-1] == '\n');
        if (!same)
            print_message("%s: missing: %s\nin\n%s", expected, line, text->data);
    }
    for (size_t i = 0; i < text->size; i++)
        lines[1] += text->data[i] == '\n';
    bytes_free(&file);
    return same && lines[0] == lines[1];
}

BAGI_UNUSED static void check_import(
    const bags_importer *importer, const char *path, const char *expected) {
    bags_code code;
    CHECK(importer->detect(path));
    bytes text = import_all(importer, path, &code);
    CHECK(is_code(BAGS_OK, (int)code, path));
    CHECK(import_is(&text, expected));
    bytes_free(&text);
}

/* The source is refused when it is opened or read, with this message. */
BAGI_UNUSED static void check_import_fails(const bags_importer *importer,
    bags_code expected, const char *path, const char *pattern) {
    bags_code code;
    bytes text = import_all(importer, path, &code);
    bytes_free(&text);
    CHECK(is_code((int)expected, (int)code, path));
    assert_says(pattern);
}

/* Change every byte of a file in turn, and truncate it everywhere: a source of
 * which it is a part, `path`, is then imported as before, or refused with a
 * message that begins with the path; if it has no checksums, anything but a crash
 * or more memory than `most` will do. */
BAGI_UNUSED static void check_damage(const bags_importer *importer, const char *path,
    const char *file, bool checksums, uint64_t most) {
    bags_code code;
    bytes good = load(file), before = import_all(importer, path, &code), after;
    CHECK(is_code(BAGS_OK, (int)code, path));
    memory.peak = memory.used;
    for (size_t i = 0; i < 2 * good.size; i++) {
        unsigned char change = (unsigned char)(i < good.size ? 1 + i % 255 : 0);
        good.data[i % good.size] ^= change;
        save(file, good.data, i < good.size ? good.size : i - good.size);
        good.data[i % good.size] ^= change;
        after = import_all(importer, path, &code);
        bool same = !code && after.size == before.size &&
                    memcmp(after.data, before.data, after.size) == 0;
        if (code)
            CHECK(strncmp(said.message, path, strlen(path)) == 0 ||
                  strncmp(said.message, file, strlen(file)) == 0 ||
                  code == BAGS_ERROR_VALUE);
        else
            CHECK(same || !checksums);
        bytes_free(&after);
    }
    save(file, good.data, good.size);
    CHECK(memory.peak < most);
    bytes_free(&good);
    bytes_free(&before);
}

/* The failure of every allocation is an error, and nothing stays allocated. */
BAGI_UNUSED static void check_out_of_memory(
    const bags_importer *importer, const char *path) {
    bags_code code = BAGS_ERROR_MEMORY;
    for (uint64_t n = 1; code; n++) {
        memory.calls = memory.failed = 0;
        memory.fail_at = n;
        bytes text = import_all(importer, path, &code);
        bytes_free(&text);
        CHECK(memory.failed ? is_code(BAGS_ERROR_MEMORY, (int)code, path)
                            : is_code(BAGS_OK, (int)code, path));
    }
    memory.fail_at = 0;
}

#endif /* BAGS_TESTS_IMPORT_CHECK_H */
