/*
 * What the reading subcommands read. A Bag is shown as a dataset with one plain
 * field, "blob", of type bytes, so that they need not tell them apart.
 */
#include "command.h"
#include "system.h"

#include <errno.h>
#include <string.h>

static const bags_field bag_field = {"blob", "bytes"};

void source_options_describe(source_options *given, option *into) {
    const option all[SOURCE_OPTIONS] = {
        {"allow-gaps", &given->allow_gaps, NULL},
        {"skip-unfinished", &given->skip_unfinished, NULL},
        {"live", &given->live, NULL}, {"check", &given->check, NULL}};
    memcpy(into, all, sizeof all);
}

static bags_code open_bag(source *from, const char *path,
    const source_options *wanted, bags_error *err) {
    bag_reader_options options = {0};
    options.verify_checksums = wanted->check;
    /* granular 0.20 and 0.21 write an empty Bag as an empty file. */
    options.allow_empty_file = true;
    options.unfinished = wanted->live ? BAGS_UNFINISHED_READ : BAGS_UNFINISHED_REFUSE;
    from->bag = bag_reader_open(path, &options, err);
    if (!from->bag)
        return err->code;
    if (bag_reader_size(from->bag) == 0)
        note("%s: the file has 0 bytes: taken for an empty Bag, but a crash "
             "leaves this too", path);
    return BAGS_OK;
}

static bags_code open_dataset(source *from, const char *path,
    const source_options *wanted, bags_error *err) {
    bags_reader_options options = {0};
    options.allow_gaps = wanted->allow_gaps;
    options.unfinished = wanted->skip_unfinished ? BAGS_UNFINISHED_SKIP : BAGS_UNFINISHED_REFUSE;
    options.verify_checksums = wanted->check;
    options.unfinished = wanted->live ? BAGS_UNFINISHED_READ : BAGS_UNFINISHED_REFUSE;
    from->codecs = codecs_make(err);
    if (!from->codecs)
        return err->code;
    options.registry = from->codecs;
    from->dataset = bags_reader_open(path, &options, err);
    return from->dataset ? BAGS_OK : err->code;
}

bags_code source_open(source *from, const char *path,
    const source_options *options, bags_error *err) {
    struct stat about;
    memset(from, 0, sizeof *from);
    from->path = path;
    if (stat(path, &about))
        return fail_system(err, errno, path, "open");
    bags_code code = S_ISDIR(about.st_mode)
                         ? open_dataset(from, path, options, err)
                         : open_bag(from, path, options, err);
    if (code)
        source_close(from);
    return code;
}

void source_close(source *from) {
    bags_row_free(&from->row);
    bags_buffer_free(&from->scratch);
    bags_reader_close(from->dataset);
    bag_reader_close(from->bag);
    bags_registry_free(from->codecs);
    memset(from, 0, sizeof *from);
}

uint64_t source_length(const source *from) {
    return from->bag ? bag_reader_length(from->bag)
                     : bags_reader_length(from->dataset);
}

const bags_field *source_fields(const source *from, size_t *count) {
    if (!from->bag)
        return bags_reader_fields(from->dataset, count);
    *count = 1;
    return &bag_field;
}

bool source_is_sequence(const source *from, size_t field) {
    const bags_type *type =
        from->bag ? NULL : bags_reader_type(from->dataset, field);
    return type && type->sequence;
}

bags_code source_get(source *from, uint64_t index, const bags_select *selects,
    size_t count, bags_error *err) {
    if (!from->bag)
        return bags_reader_get(from->dataset, index, selects, count, &from->row,
            err);
    return bag_reader_get(from->bag, index, &from->scratch, &from->blob, err);
}

size_t source_items(const source *from, size_t slot) {
    return from->bag ? 1 : bags_row_length(&from->row, slot);
}

bags_view source_bytes(const source *from, size_t slot, size_t item) {
    return from->bag ? from->blob : bags_row_bytes(&from->row, slot, item);
}

bags_code source_value(source *from, size_t slot, size_t item, bags_value *out,
    bags_error *err) {
    if (!from->bag)
        return bags_row_value(&from->row, slot, item, NULL, out, err);
    memset(out, 0, sizeof *out);
    out->kind = BAGS_KIND_BYTES;
    out->data = from->blob.data;
    out->size = from->blob.size;
    return BAGS_OK;
}
