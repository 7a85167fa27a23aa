/*
 * Write your own codec: the type `color` stores text such as "#ff8000" in 3 bytes. A
 * codec is a table of functions. It is added to a registry, and the registry is passed
 * to the writer and the reader in their options.
 *
 *     cc 05_codec.c -o 05_codec && ./05_codec palette
 */
#define BAGS_IMPLEMENTATION
#include "../bags.h"
#include <stdio.h>
#include <string.h>

static bags_code color_encode(void *state, const bags_value *value,
    bags_buffer *scratch, bags_view *blob, bags_error *err) {
    static const char digits[] = "0123456789abcdef";
    const char *text = (const char *)value->data;
    (void)state;
    if (value->kind != BAGS_KIND_UTF8 || value->size != 7 || text[0] != '#')
        return bags_fail(err, BAGS_ERROR_VALUE, "a color is #rrggbb");
    if (bags_buffer_reserve(scratch, 3, err))
        return BAGS_ERROR_MEMORY;
    memset(scratch->data, 0, 3);
    for (size_t i = 0; i < 6; i++) {
        const char *digit = (const char *)memchr(digits, text[i + 1], 16);
        if (!digit)
            return bags_fail(err, BAGS_ERROR_VALUE, "no hex digit: %.7s", text);
        unsigned char *byte = &scratch->data[i / 2];
        *byte = (unsigned char)(*byte << 4 | (digit - digits));
    }
    blob->data = scratch->data;
    blob->size = 3;
    return BAGS_OK;
}

/* Blobs come from files: do not trust them. */
static bags_code color_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    (void)state;
    if (blob.size != 3)
        return bags_fail(
            err, BAGS_ERROR_CORRUPT, "a color of %d bytes", (int)blob.size);
    if (bags_buffer_reserve(scratch, 8, err))
        return BAGS_ERROR_MEMORY;
    snprintf((char *)scratch->data, 8, "#%02x%02x%02x", blob.data[0], blob.data[1],
        blob.data[2]);
    *value = bags_utf8_sized((const char *)scratch->data, 7);
    return BAGS_OK;
}

static const bags_codec color = {
    "color", NULL, color_encode, color_decode, NULL, NULL, NULL};

static bags_code write_palette(
    const char *path, const bags_registry *codecs, bags_error *err) {
    const bags_field field = {"colors", "color[]"};
    const bags_value colors[3] = {
        bags_utf8("#ff8000"), bags_utf8("#00c0ff"), bags_utf8("#202020")};
    const bags_entry datapoint = {"colors", colors, 3};
    bags_writer_options options = {0};
    options.registry = codecs;
    bags_writer *writer = bags_writer_open(path, &field, 1, &options, err);
    if (!writer)
        return err->code;
    bags_writer_append(writer, &datapoint, 1, NULL);
    return bags_writer_close(writer, err);
}

static bags_code read_palette(
    const char *path, const bags_registry *codecs, bags_error *err) {
    bags_row row = {0};
    bags_value value;
    bags_reader_options options = {0};
    options.registry = codecs;
    bags_reader *reader = bags_reader_open(path, &options, err);
    if (!reader)
        return err->code;
    bags_code code = bags_reader_get(reader, 0, NULL, 0, &row, err);
    for (size_t i = 0; !code && i < bags_row_length(&row, 0); i++) {
        code = bags_row_value(&row, 0, i, NULL, &value, err);
        if (!code)
            printf("%d bytes: %.*s\n", (int)bags_row_bytes(&row, 0, i).size,
                (int)value.size, (const char *)value.data);
    }
    bags_row_free(&row);
    bags_reader_close(reader);
    return code;
}

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "palette";
    bags_error err;
    bags_registry *codecs = bags_registry_create(NULL, &err);
    int failed = !codecs || bags_registry_add(codecs, &color, &err) ||
                 write_palette(path, codecs, &err) || read_palette(path, codecs, &err);
    if (failed)
        fprintf(stderr, "%s\n", err.message);
    bags_registry_free(codecs);
    return failed;
}

/* Output:
3 bytes: #ff8000
3 bytes: #00c0ff
3 bytes: #202020
*/
