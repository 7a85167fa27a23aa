/*
 * export.c - the functions that all exporters share: fields and their values, shards, and
 * files that are written or, to resume, compared.
 *
 * A file is NAME.partial until it is complete. OUT.unfinished exists until the export is,
 * and is locked by its process; worker W of several has OUT.unfinished-W.
 */
#include "export.h"

#include "files.h"
#include "text.h"
#include "try.h"
#include "values.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EX_BUFFER ((size_t)1 << 20)
#define EX_AHEAD 64 /* datapoints that are read ahead */

static const char ex_other[] =
    "differs from what this export writes; to resume needs the "
    "same source and options as before; to start again, remove "
    "it";

/* ---- errors and memory ---- */

bags_code bags_target_fail(bags_target *t, bags_code code, const char *format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return bags_fail(t->err, code, "%s: %s", bags_path_tail(t->path), text);
}

bags_code bags_target_fail_field(bags_target *t, const bags_target_field *field,
    bags_code code, const char *format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return bags_fail(t->err, code, "%s: field \"%.100s\": %s",
        bags_path_tail(bags_reader_path(t->reader)),
        bags_reader_fields(t->reader, NULL)[field->number].name, text);
}

bags_code bags_target_fail_value(
    bags_target *t, const bags_target_field *field, const char *format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return bags_fail(t->err, BAGS_ERROR_VALUE,
        "%s: field \"%.100s\": datapoint %" PRIu64 ": %s",
        bags_path_tail(bags_reader_path(t->reader)),
        bags_reader_fields(t->reader, NULL)[field->number].name, t->datapoint, text);
}

static bags_code ex_no_memory(bags_target *t) {
    return bags_fail(t->err, BAGS_ERROR_MEMORY, "out of memory");
}

/* A header of 64 bytes keeps what follows aligned for any type. */
typedef struct ex_block {
    struct ex_block *next;
    size_t size;
    char padding[64 - sizeof(void *) - sizeof(size_t)];
} ex_block;

void *bags_target_alloc(bags_target *t, size_t count, size_t size) {
    const bags_allocator use = bags_allocator_of(t->options.allocator);
    bool fits = !size || count <= (SIZE_MAX / 2 - sizeof(ex_block)) / size;
    size_t total = fits ? sizeof(ex_block) + count * size : 0;
    ex_block *block = fits ? (ex_block *)use.resize(use.user, NULL, 0, total) : NULL;
    if (!block) {
        ex_no_memory(t);
        return NULL;
    }
    memset(block, 0, total);
    block->next = (ex_block *)t->blocks;
    block->size = total;
    t->blocks = block;
    return block + 1;
}

char *bags_target_format(bags_target *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *out = (char *)bags_target_alloc(t, (size_t)(size < 0 ? 0 : size) + 1, 1);
    if (!out)
        return NULL;
    va_start(arguments, format);
    (void)vsnprintf(out, (size_t)size + 1, format, arguments);
    va_end(arguments);
    return out;
}

bags_code bags_target_put(
    bags_target *t, bags_export_bytes *to, const void *data, size_t size) {
    if (size > SIZE_MAX / 2 - to->size)
        return ex_no_memory(t);
    if (!to->listed) {
        to->buffer = bags_buffer_of(t->options.allocator);
        to->next = t->bytes;
        to->listed = true;
        t->bytes = to;
    }
    FORMAT_TRY(bags_buffer_reserve(&to->buffer, to->size + size + 1, t->err));
    if (size)
        memcpy(to->buffer.data + to->size, data, size);
    to->size += size;
    to->buffer.data[to->size] = 0;
    return BAGS_OK;
}

bags_code bags_target_put_text(
    bags_target *t, bags_export_bytes *to, const char *text) {
    return bags_target_put(t, to, text, strlen(text));
}

bags_code bags_target_put_item(bags_target *t, bags_export_bytes *to,
    const bags_target_field *field, size_t item) {
    const bags_value *value = &field->values[item];
    char number[24];
    if (field->form == BAGS_FORM_TEXT)
        return bags_target_put(t, to, value->data, value->size);
    if (value->kind == BAGS_KIND_INT)
        (void)snprintf(number, sizeof number, "%" PRId64, value->sint);
    else
        (void)snprintf(number, sizeof number, "%" PRIu64, value->uint);
    return bags_target_put_text(t, to, number);
}

bags_code bags_target_put_number(bags_target *t, bags_export_bytes *to) {
    char number[24];
    int digits = 6;
    for (uint64_t most = 1000000; t->length > most && digits < 19; most *= 10)
        digits++;
    (void)snprintf(number, sizeof number, "%0*" PRIu64, digits, t->index);
    return bags_target_put_text(t, to, number);
}

bags_code bags_target_put_json(
    bags_target *t, bags_export_bytes *to, const void *text, size_t size) {
    const unsigned char *from = (const unsigned char *)text;
    FORMAT_TRY(bags_target_put(t, to, "\"", 1));
    for (size_t i = 0, start = 0; i <= size; i++) {
        char escape[8];
        bool special =
            i < size && (from[i] < 0x20 || from[i] == '"' || from[i] == '\\');
        if (i < size && !special)
            continue;
        FORMAT_TRY(bags_target_put(t, to, from + start, i - start));
        start = i + 1;
        if (!special)
            break;
        int length = from[i] < 0x20
                         ? snprintf(escape, sizeof escape, "\\u%04x", from[i])
                         : snprintf(escape, sizeof escape, "\\%c", from[i]);
        FORMAT_TRY(bags_target_put(t, to, escape, (size_t)length));
    }
    return bags_target_put(t, to, "\"", 1);
}

bags_code bags_target_put_list(
    bags_target *t, bags_export_bytes *to, const bags_target_field *field) {
    FORMAT_TRY(bags_target_put(t, to, "[", 1));
    for (size_t i = 0; i < field->length; i++) {
        const bags_value *value = &field->values[i];
        FORMAT_TRY(bags_target_put(t, to, ", ", i ? 2 : 0));
        FORMAT_TRY(field->form == BAGS_FORM_TEXT
                       ? bags_target_put_json(t, to, value->data, value->size)
                       : bags_target_put_item(t, to, field, i));
    }
    return bags_target_put(t, to, "]", 1);
}

/* The order of a byte of a path: a directory precedes what is in it, and nothing is
 * between. */
static int ex_fold(char c) {
    return c == '/' ? 1 : c >= 'A' && c <= 'Z' ? c + 32 : (unsigned char)c;
}

/* The number of bytes at which two paths begin alike, without regard to case. */
static size_t ex_common(const char *a, const char *b) {
    size_t i = 0;
    while (a[i] && ex_fold(a[i]) == ex_fold(b[i]))
        i++;
    return i;
}

static int ex_compare_paths(const void *left, const void *right) {
    const char *a = *(const char *const *)left, *b = *(const char *const *)right;
    size_t i = ex_common(a, b);
    return ex_fold(a[i]) - ex_fold(b[i]);
}

/* True if two paths that follow each other in this order cannot both exist. */
static bool ex_clash(const char *a, const char *b) {
    size_t i = ex_common(a, b);
    if (!a[i] && (!b[i] || b[i] == '/'))
        return true;
    while (i > 0 && a[i - 1] != '/')
        i--;
    return memcmp(a, b, i) != 0;
}

bags_code bags_target_find_twice(bags_target *t, const bags_export_bytes *texts,
    size_t count, bool paths, const char *twice[2]) {
    const char **sorted =
        (const char **)bags_target_alloc(t, count + 1, sizeof *sorted);
    const char *at = (const char *)texts->buffer.data;
    twice[0] = twice[1] = NULL;
    if (!sorted)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++, at += strlen(at) + 1)
        sorted[i] = at;
    qsort(
        sorted, count, sizeof *sorted, paths ? ex_compare_paths : format_compare_texts);
    for (size_t i = 1; i < count && !twice[0]; i++)
        if (paths ? ex_clash(sorted[i - 1], sorted[i])
                  : !strcmp(sorted[i - 1], sorted[i])) {
            twice[0] = sorted[i - 1];
            twice[1] = sorted[i];
        }
    return BAGS_OK;
}

/* ---- fields ---- */

static const struct ex_type {
    const char *name;
    bags_form form;
    const char *ending;
} ex_types[] = {
    {"int", BAGS_FORM_INTEGER, ""},
    {"i64", BAGS_FORM_INTEGER, ""},
    {"u64", BAGS_FORM_INTEGER, ""},
    {"utf8", BAGS_FORM_TEXT, "txt"},
    {"array", BAGS_FORM_ARRAY, "npy"},
    {"bytes", BAGS_FORM_BLOB, ""},
    {"jpeg", BAGS_FORM_BLOB, "jpg"},
    {"jpg", BAGS_FORM_BLOB, "jpg"},
    {"png", BAGS_FORM_BLOB, "png"},
    {"webp", BAGS_FORM_BLOB, "webp"},
    {"npy", BAGS_FORM_BLOB, "npy"},
    {"mp4", BAGS_FORM_BLOB, "mp4"},
    {"webm", BAGS_FORM_BLOB, "webm"},
    {"msgpack", BAGS_FORM_BLOB, "msgpack"},
    {"tree", BAGS_FORM_BLOB, "tree"},
};

static bool ex_parse_array(bags_target_field *field, const bags_type *type) {
    bags_view name = bags_type_argument(type, 0);
    if (type->count == 0)
        return true;
    field->dtype = bags_dtype_parse((const char *)name.data, name.size, NULL);
    field->dims = type->count - 1;
    for (size_t i = 0; i < field->dims && i < BAGS_MAX_DIMS; i++)
        if (!bags_type_number(type, i + 1, &field->shape[i])) {
            if (!bags_view_is(bags_type_argument(type, i + 1), "-1"))
                return false;
            field->shape[i] = UINT64_MAX;
        }
    return field->dtype != BAGS_DTYPE_NONE && field->dims <= BAGS_MAX_DIMS;
}

/* Set the form of a field, by the type of its items. */
static bags_code ex_parse(bags_target *t, bags_target_field *field) {
    const char *text = bags_reader_fields(t->reader, NULL)[field->number].type;
    bags_buffer whole = bags_buffer_of(t->options.allocator);
    bags_type type = *bags_reader_type(t->reader, field->number), inside = type;
    bags_code code = BAGS_OK;
    field->sequence = type.sequence;
    field->compressed = format_type_inside(&type, &inside);
    field->type = bags_target_format(t, inside.count ? "%.*s(%.*s)" : "%.*s",
        (int)inside.name.size, (const char *)inside.name.data,
        (int)inside.arguments.size, (const char *)inside.arguments.data);
    if (!field->type)
        return BAGS_ERROR_MEMORY;
    /* float32 is short for array(float32). */
    code = bags_type_complete(NULL, field->type, &whole, t->err);
    if (!code)
        field->type = bags_target_format(t, "%s", (const char *)whole.data);
    bags_buffer_free(&whole);
    if (code || !field->type)
        return code ? code : BAGS_ERROR_MEMORY;
    FORMAT_TRY(bags_type_parse(field->type, &inside, t->err));
    field->word = bags_target_format(
        t, "%.*s", (int)inside.name.size, (const char *)inside.name.data);
    if (!field->word)
        return BAGS_ERROR_MEMORY;
    field->form = BAGS_FORM_BLOB;
    field->ending = "";
    for (size_t i = 0; i < sizeof ex_types / sizeof *ex_types; i++)
        if (!strcmp(field->word, ex_types[i].name)) {
            field->form = ex_types[i].form;
            field->ending = ex_types[i].ending;
        }
    if (field->form == BAGS_FORM_ARRAY && !ex_parse_array(field, &inside))
        return bags_target_fail_field(
            t, field, BAGS_ERROR_TYPE, "invalid type %.100s", text);
    uint64_t size = 0;
    bool sized = bags_type_number(&inside, 0, &size);
    field->may_exceed_int64 =
        field->form == BAGS_FORM_ARRAY
            ? field->dtype == BAGS_DTYPE_UINT64 || field->dtype == BAGS_DTYPE_NONE
            : !strcmp(field->word, "u64") ||
                  (!strcmp(field->word, "int") && (!sized || size >= 8));
    return BAGS_OK;
}

bags_target_field *bags_target_find(bags_target *t, const char *name) {
    const bags_field *have = bags_reader_fields(t->reader, NULL);
    for (size_t i = 0; i < t->count; i++)
        if (!strcmp(t->fields[i].name, name) ||
            !strcmp(have[t->fields[i].number].name, name))
            return &t->fields[i];
    return NULL;
}

/* Add a field of the dataset that is only read, unless it is exported or missing. */
static bags_code ex_add_hidden(bags_target *t, const char *name) {
    size_t all = 0, number = 0;
    const bags_field *have = bags_reader_fields(t->reader, &all);
    while (name && number < all && strcmp(have[number].name, name) != 0)
        number++;
    if (!name || number == all || bags_target_find(t, name))
        return BAGS_OK;
    bags_target_field *field = &t->fields[t->count++];
    field->number = number;
    field->name = name;
    field->hidden = true;
    field->values_buffer = bags_buffer_of(t->options.allocator);
    return ex_parse(t, field);
}

static bags_code ex_add_fields(bags_target *t) {
    size_t all = 0;
    const bags_field *have = bags_reader_fields(t->reader, &all);
    const bags_field *want = t->options.fields;
    t->count = want ? t->options.fields_count : all;
    t->fields =
        (bags_target_field *)bags_target_alloc(t, t->count + 3, sizeof *t->fields);
    t->selects = (bags_select *)bags_target_alloc(t, t->count + 3, sizeof *t->selects);
    if (!t->fields || !t->selects)
        return BAGS_ERROR_MEMORY;
    if (t->count == 0)
        return bags_target_fail(t, BAGS_ERROR_FIELD, "no field to export");
    for (size_t i = 0; i < t->count; i++) {
        bags_target_field *field = &t->fields[i];
        while (field->number < all && want &&
               strcmp(have[field->number].name, want[i].name) != 0)
            field->number++;
        if (!want)
            field->number = i;
        if (field->number == all)
            return bags_fail(t->err, BAGS_ERROR_FIELD, "%s: no field \"%.100s\"",
                bags_path_tail(bags_reader_path(t->reader)), want[i].name);
        field->name = want && want[i].type ? want[i].type : have[field->number].name;
        field->values_buffer = bags_buffer_of(t->options.allocator);
        FORMAT_TRY(ex_parse(t, field));
    }
    if (t->exporter->has_names) {
        FORMAT_TRY(ex_add_hidden(t, t->options.key));
        FORMAT_TRY(ex_add_hidden(t, t->options.label));
    }
    qsort(t->fields, t->count, sizeof *t->fields, format_compare_texts);
    for (size_t i = 0; i < t->count; i++) {
        t->fields[i].slot = i;
        t->selects[i] = bags_select_all(t->fields[i].number);
        if (i && !strcmp(t->fields[i - 1].name, t->fields[i].name))
            return bags_target_fail_field(t, &t->fields[i], BAGS_ERROR_FIELD,
                "another field would also be named \"%.100s\"", t->fields[i].name);
    }
    return BAGS_OK;
}

/* ---- values ---- */

uint64_t bags_target_bits(const bags_value *value, size_t element) {
    unsigned char bytes[8] = {0};
    if (value->kind != BAGS_KIND_ARRAY)
        return value->kind == BAGS_KIND_INT ? (uint64_t)value->sint : value->uint;
    size_t size = bags_dtype_size(value->dtype), bits = 8 * size;
    memcpy(bytes, (const char *)value->data + element * size, size);
    if (!bags_little_endian())
        bags_swap_bytes(bytes, bytes, size, size);
    uint64_t number = bags_load_bytes(bytes, size, false);
    bool has_sign = value->dtype >= BAGS_DTYPE_INT8 && value->dtype <= BAGS_DTYPE_INT64;
    if (has_sign && bits < 64 && number >> (bits - 1) & 1)
        number |= UINT64_MAX << bits;
    return number;
}

static uint64_t ex_datapoint(const bags_target *t, uint64_t index) {
    return t->options.rows ? t->options.rows[index] : index;
}

/* Decode a blob that was compressed; its value is valid as long as others of the row. */
static bags_code ex_decode_inside(
    bags_target *t, bags_target_field *field, size_t item, bags_value *value) {
    bags_view blob = {(const unsigned char *)value->data, value->size};
    if (item >= field->scratch_count) {
        size_t count = 2 * item + 8;
        bags_buffer *grown =
            (bags_buffer *)bags_target_alloc(t, count, sizeof *field->scratch);
        if (!grown)
            return BAGS_ERROR_MEMORY;
        if (field->scratch_count)
            memcpy(grown, field->scratch, field->scratch_count * sizeof *grown);
        for (size_t i = field->scratch_count; i < count; i++)
            grown[i] = bags_buffer_of(t->options.allocator);
        field->scratch = grown;
        field->scratch_count = count;
    }
    memset(value, 0, sizeof *value);
    return bags_decode(NULL, field->type, blob, &field->scratch[item], value, t->err);
}

/* Set the values of a field from a slot of the row. */
static bags_code ex_take(bags_target *t, bags_target_field *field, size_t slot) {
    field->length = bags_row_length(&t->row, slot);
    FORMAT_TRY(bags_buffer_reserve(
        &field->values_buffer, (field->length + 1) * sizeof *field->values, t->err));
    field->values = (bags_value *)(void *)field->values_buffer.data;
    for (size_t i = 0; i < field->length; i++) {
        bags_value *value = &field->values[i];
        bags_code code = BAGS_OK;
        memset(value, 0, sizeof *value);
        if (field->form == BAGS_FORM_BLOB && !field->compressed) {
            bags_view blob = bags_row_bytes(&t->row, slot, i);
            *value = bags_blob(blob.data, blob.size);
            continue;
        }
        code = bags_row_value(&t->row, slot, i, NULL, value, t->err);
        if (!code && field->compressed && field->form != BAGS_FORM_BLOB)
            code = ex_decode_inside(t, field, i, value);
        if (code)
            return bags_prefix(t->err, code,
                "datapoint %" PRIu64 ": field \"%.100s\": ", t->datapoint, field->name);
    }
    return BAGS_OK;
}

/* Read datapoint `index` of the export, some of its fields. */
static bags_code ex_read(
    bags_target *t, uint64_t index, const bags_select *selects, size_t count) {
    t->index = index;
    t->datapoint = ex_datapoint(t, index);
    if (t->options.prefetch && index % EX_AHEAD == 0) {
        uint64_t ahead[EX_AHEAD];
        size_t length = 0;
        for (; length < EX_AHEAD && index + length < t->length; length++)
            ahead[length] = ex_datapoint(t, index + length);
        FORMAT_TRY(bags_reader_prefetch(
            t->reader, ahead, length, selects, count, &t->row, t->err));
    }
    return bags_reader_get(t->reader, t->datapoint, selects, count, &t->row, t->err);
}

bool bags_target_range(
    const bags_target *t, uint64_t shard, uint64_t *start, uint64_t *stop) {
    uint64_t each = t->options.shard_length, parts = t->shard_count;
    if (shard >= parts)
        return false;
    if (each) {
        *start = shard * each;
        *stop = *start + each < t->length ? *start + each : t->length;
        return true;
    }
    uint64_t less = t->length / parts, more = t->length % parts;
    *start = shard * less + (shard < more ? shard : more);
    *stop = *start + less + (shard < more);
    return true;
}

bags_code bags_target_next(bags_target *t, bool *more) {
    uint64_t size = 0;
    *more = false;
    if (t->wrote && t->options.progress &&
        !t->options.progress(t->options.user, t->report.datapoints, t->length))
        return bags_target_fail(t, BAGS_ERROR_IO, "stopped");
    t->wrote = false;
    if (!t->pending) {
        if (t->next == t->stop)
            return BAGS_OK;
        FORMAT_TRY(ex_read(t, t->next, t->selects, t->count));
        for (size_t i = 0; i < t->count; i++) {
            FORMAT_TRY(ex_take(t, &t->fields[i], i));
            for (size_t j = 0; j < t->fields[i].length && !t->fields[i].apart; j++)
                size += bags_row_bytes(&t->row, i, j).size;
        }
        t->pending_bytes = size;
        t->pending = true;
    }
    if (t->options.shard_size && t->shard_bytes &&
        t->shard_bytes + t->pending_bytes > t->options.shard_size)
        return BAGS_OK;
    /* A datapoint without bytes counts as well, or a shard would never begin. */
    t->shard_bytes += t->pending_bytes + (t->pending_bytes == 0);
    t->pending = false;
    t->next++;
    t->report.datapoints++;
    *more = t->wrote = true;
    return BAGS_OK;
}

bags_code bags_target_scan(bags_target *t, bags_target_field *const *fields,
    size_t count,
    bags_code (*check)(bags_target *target, bags_target_field *field, void *user),
    void *user) {
    bags_select selects[2];
    for (size_t i = 0; i < count; i++)
        selects[i] = bags_select_all(fields[i]->number);
    for (uint64_t i = 0; i < t->length; i++) {
        FORMAT_TRY(ex_read(t, i, selects, count));
        for (size_t k = 0; k < count; k++)
            FORMAT_TRY(ex_take(t, fields[k], k));
        FORMAT_TRY(check(t, fields[0], user));
    }
    return BAGS_OK;
}

bags_code bags_target_first(bags_target *t) {
    t->next = 0;
    FORMAT_TRY(ex_read(t, 0, t->selects, t->count));
    for (size_t i = 0; i < t->count; i++)
        FORMAT_TRY(ex_take(t, &t->fields[i], i));
    return BAGS_OK;
}

bags_code bags_target_most(
    bags_target *t, const bags_target_field *field, uint64_t *most) {
    *most = field->sequence ? 0 : 1;
    for (uint64_t i = 0; i < t->length && field->sequence; i++) {
        uint64_t count = 0;
        FORMAT_TRY(bags_reader_items(
            t->reader, ex_datapoint(t, i), field->number, &t->row, &count, t->err));
        *most = count > *most ? count : *most;
    }
    return BAGS_OK;
}

static bags_code ex_check_int64(bags_target *t, bags_target_field *field, void *user) {
    for (size_t i = 0; i < field->length; i++)
        if (field->values[i].kind == BAGS_KIND_UINT &&
            field->values[i].uint > INT64_MAX)
            return bags_target_fail_value(t, field,
                "%s has no number above 2^63-1 (%" PRIu64 ")", (const char *)user,
                field->values[i].uint);
    return BAGS_OK;
}

bags_code bags_target_refuse_unsigned(
    bags_target *t, bags_target_field *field, const char *format) {
    char name[40];
    if (!field->may_exceed_int64 || field->form == BAGS_FORM_BLOB)
        return BAGS_OK;
    if (field->form == BAGS_FORM_INTEGER && !strcmp(field->word, "int")) {
        (void)snprintf(name, sizeof name, "%s", format);
        return bags_target_scan(t, &field, 1, ex_check_int64, name);
    }
    if (field->form == BAGS_FORM_ARRAY && field->dtype == BAGS_DTYPE_NONE)
        return BAGS_OK; /* .npy files */
    return bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
        "%s has no unsigned numbers of 64 bits (%.60s)", format, field->type);
}

/* ---- files ---- */

/* Create the parents of a path. */
static bags_code ex_make_parents(bags_target *t, const char *path) {
    const bags_io *io = bags_io_local();
    char copy[FORMAT_PATH];
    if (strlen(path) >= sizeof copy)
        return bags_fail(
            t->err, BAGS_ERROR_LIMIT, "%s: path too long", bags_path_tail(path));
    memcpy(copy, path, strlen(path) + 1);
    for (char *at = copy + (*copy == '/'); (at = strchr(at, '/')) != NULL; at++) {
        *at = 0;
        int error = *copy ? io->make_dir(io->user, copy) : 0;
        bags_path_kind kind = BAGS_PATH_NONE;
        if (error && error != EEXIST && io->kind(io->user, copy, &kind) == 0 &&
            kind == BAGS_PATH_DIRECTORY)
            error = 0;
        if (error && error != EEXIST)
            return bags_fail_io(io, error, copy, "create", t->err);
        *at = '/';
    }
    return BAGS_OK;
}

static bags_path_kind ex_kind(const char *path) {
    const bags_io *io = bags_io_local();
    bags_path_kind kind = BAGS_PATH_NONE;
    return io->kind(io->user, path, &kind) ? BAGS_PATH_NONE : kind;
}

static bags_code ex_fail_file(bags_target *t, const char *path, const char *what) {
    return bags_fail(t->err, BAGS_ERROR_VALUE, "%s: %s", bags_path_tail(path), what);
}

/* Open the file, and what exists of it. */
static bags_code ex_file_start(bags_target *t, const char *path) {
    size_t size = strlen(path);
    if (size + sizeof ".partial" > sizeof t->to->path)
        return bags_fail(
            t->err, BAGS_ERROR_LIMIT, "%s: path too long", bags_path_tail(path));
    memcpy(t->to->path, path, size + 1);
    memcpy(t->to->partial, path, size);
    memcpy(t->to->partial + size, ".partial", sizeof ".partial");
    t->to->at = t->to->existing = 0;
    t->to->bytes.size = 0;
    FORMAT_TRY(ex_make_parents(t, path));
    t->to->complete = ex_kind(path) != BAGS_PATH_NONE;
    if (t->to->complete && !t->options.resume)
        return bags_fail(
            t->err, BAGS_ERROR_EXISTS, "%s: already exists", bags_path_tail(path));
    t->report.existed = t->report.existed && t->to->complete;
    return BAGS_OK;
}

bags_code bags_target_use(bags_target *t, bags_export_file **file) {
    bags_export_file *to = file ? *file : &t->own;
    if (!to) {
        to = (bags_export_file *)bags_target_alloc(t, 1, sizeof *to);
        if (!to)
            return BAGS_ERROR_MEMORY;
        to->next = t->own.next;
        t->own.next = to;
        *file = to;
    }
    t->to = to;
    return BAGS_OK;
}

bags_code bags_target_file_open(bags_target *t, const char *path) {
    const bags_io *io = bags_io_local();
    FORMAT_TRY(ex_file_start(t, path));
    const char *name = t->to->complete ? t->to->path : t->to->partial;
    bool exists = ex_kind(name) != BAGS_PATH_NONE;
    int mode = t->to->complete ? BAGS_IO_READ : exists ? BAGS_IO_WRITE : BAGS_IO_CREATE;
    int error = io->open(io->user, name, mode, &t->to->file);
    if (error) {
        t->to->file = NULL;
        return bags_fail_io(io, error, name, exists ? "open" : "create", t->err);
    }
    error = io->size(io->user, t->to->file, &t->to->existing);
    return error ? bags_fail_io(io, error, name, "read", t->err) : BAGS_OK;
}

/* Compare bytes of the open file with what exists of it, and write the others. */
static bags_code ex_flush(bags_target *t) {
    const bags_io *io = bags_io_local();
    const char *name = t->to->complete ? t->to->path : t->to->partial;
    const unsigned char *data = t->to->bytes.buffer.data;
    size_t size = t->to->bytes.size, same = 0;
    if (t->to->at < t->to->existing) {
        uint64_t left = t->to->existing - t->to->at;
        same = left < size ? (size_t)left : size;
        FORMAT_TRY(bags_buffer_reserve(&t->compare, same, t->err));
        FORMAT_TRY(
            bags_read(io, t->to->file, name, t->to->at, t->compare.data, same, t->err));
        if (same && memcmp(t->compare.data, data, same))
            return ex_fail_file(t, name, ex_other);
    }
    if (same < size && t->to->complete)
        return ex_fail_file(t, name, ex_other);
    int error = same < size ? format_write_all(io, t->to->file, t->to->at + same,
                                  data + same, size - same)
                            : 0;
    if (error)
        return bags_fail_io(io, error, name, "write", t->err);
    t->to->at += size;
    t->to->bytes.size = 0;
    return BAGS_OK;
}

bags_code bags_target_write(bags_target *t, const void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        size_t room = EX_BUFFER - t->to->bytes.size;
        size_t part = size - done < room ? size - done : room;
        FORMAT_TRY(bags_target_put(
            t, &t->to->bytes, (const unsigned char *)data + done, part));
        done += part;
        if (t->to->bytes.size == EX_BUFFER)
            FORMAT_TRY(ex_flush(t));
    }
    return BAGS_OK;
}

static bags_code ex_sync_parent(bags_target *t, const char *path) {
    const bags_io *io = bags_io_local();
    const char *slash = strrchr(path, '/');
    char parent[FORMAT_PATH];
    (void)snprintf(parent, sizeof parent, "%.*s",
        slash ? (int)(slash - path + (slash == path)) : 1, slash ? path : ".");
    int error =
        t->options.no_sync || !io->sync_dir ? 0 : io->sync_dir(io->user, parent);
    return error ? bags_fail_io(io, error, parent, "sync", t->err) : BAGS_OK;
}

/* Give a complete file its name. */
static bags_code ex_publish(bags_target *t) {
    const bags_io *io = bags_io_local();
    int error = io->rename(io->user, t->to->partial, t->to->path);
    if (error)
        return bags_fail_io(io, error, t->to->path, "create", t->err);
    t->report.files++;
    return ex_sync_parent(t, t->to->path);
}

bags_code bags_target_file_close(bags_target *t) {
    const bags_io *io = bags_io_local();
    const char *name = t->to->complete ? t->to->path : t->to->partial;
    FORMAT_TRY(ex_flush(t));
    if (t->to->at < t->to->existing)
        return ex_fail_file(t, name, ex_other);
    int error =
        t->to->complete || t->options.no_sync ? 0 : io->sync(io->user, t->to->file);
    int closed = io->close(io->user, t->to->file);
    t->to->file = NULL;
    error = error ? error : closed;
    if (error)
        return bags_fail_io(io, error, name, "write", t->err);
    t->report.files += t->to->complete;
    return t->to->complete ? BAGS_OK : ex_publish(t);
}

bags_code bags_target_put_file(
    bags_target *t, const char *name, bags_view content, bool several) {
    char *path = bags_target_format(t, "%s/%s", t->path, name);
    bool resume = t->options.resume;
    if (!path)
        return BAGS_ERROR_MEMORY;
    t->options.resume = resume || several;
    bags_code code = bags_target_file_open(t, path);
    if (!code)
        code = bags_target_write(t, content.data, content.size);
    if (!code)
        code = bags_target_file_close(t);
    t->options.resume = resume;
    return code;
}

bags_code bags_target_made_open(
    bags_target *t, const char *path, const char **partial) {
    const bags_io *io = bags_io_local();
    FORMAT_TRY(ex_file_start(t, path));
    int error = io->remove(io->user, t->to->partial);
    if (error && error != ENOENT)
        return bags_fail_io(io, error, t->to->partial, "remove", t->err);
    *partial = t->to->partial;
    return BAGS_OK;
}

/* True if two files have the same bytes. */
static bags_code ex_compare_files(
    bags_target *t, const char *path, const char *other, bool *same) {
    const bags_io *io = bags_io_local();
    const char *paths[2] = {path, other};
    void *files[2] = {NULL, NULL};
    uint64_t sizes[2] = {0, 0};
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < 2 && !code; i++) {
        int error = io->open(io->user, paths[i], BAGS_IO_READ, &files[i]);
        files[i] = error ? NULL : files[i];
        error = error ? error : io->size(io->user, files[i], &sizes[i]);
        code = error ? bags_fail_io(io, error, paths[i], "read", t->err) : BAGS_OK;
    }
    if (!code)
        code = bags_buffer_reserve(&t->compare, 2 * EX_BUFFER, t->err);
    *same = sizes[0] == sizes[1];
    for (uint64_t at = 0; at < sizes[0] && *same && !code; at += EX_BUFFER) {
        size_t size = sizes[0] - at < EX_BUFFER ? (size_t)(sizes[0] - at) : EX_BUFFER;
        unsigned char *data = t->compare.data;
        for (size_t i = 0; i < 2 && !code; i++)
            code = bags_read(
                io, files[i], paths[i], at, data + i * EX_BUFFER, size, t->err);
        *same = !code && !memcmp(data, data + EX_BUFFER, size);
    }
    for (size_t i = 0; i < 2; i++)
        if (files[i])
            io->close(io->user, files[i]);
    return code;
}

bags_code bags_target_made_close(bags_target *t) {
    const bags_io *io = bags_io_local();
    bool same = true;
    void *file = NULL;
    if (t->to->complete) {
        FORMAT_TRY(ex_compare_files(t, t->to->path, t->to->partial, &same));
        io->remove(io->user, t->to->partial);
        t->report.files++;
        return same ? BAGS_OK : ex_fail_file(t, t->to->path, ex_other);
    }
    int error = io->open(io->user, t->to->partial, BAGS_IO_WRITE, &file);
    if (!error && !t->options.no_sync)
        error = io->sync(io->user, file);
    if (file)
        io->close(io->user, file);
    if (error)
        return bags_fail_io(io, error, t->to->partial, "write", t->err);
    return ex_publish(t);
}

typedef struct ex_files {
    bags_target *t;
    const char *directory;
    uint64_t *files;
    bags_code code;
} ex_files;

static bags_code ex_count_files(bags_target *t, const char *directory, uint64_t *files);

static int ex_count_file(void *user, const char *name) {
    ex_files *in = (ex_files *)user;
    const bags_io *io = bags_io_local();
    bags_path_kind kind = BAGS_PATH_NONE;
    char path[FORMAT_PATH];
    in->code = format_path(path, in->directory, name, "", in->t->err);
    if (in->code || io->kind(io->user, path, &kind))
        return EIO;
    if (kind == BAGS_PATH_DIRECTORY)
        in->code = ex_count_files(in->t, path, in->files);
    else
        ++*in->files;
    return in->code ? EIO : 0;
}

/* Add the number of files in a directory, and below it, to *files. */
static bags_code ex_count_files(
    bags_target *t, const char *directory, uint64_t *files) {
    const bags_io *io = bags_io_local();
    ex_files in = {t, directory, files, BAGS_OK};
    int error = io->list(io->user, directory, ex_count_file, &in);
    if (in.code || !error || error == ENOENT)
        return in.code;
    return bags_fail_io(io, error, directory, "list", t->err);
}

bags_code bags_target_check_files(bags_target *t, uint64_t expected) {
    uint64_t files = 0;
    FORMAT_TRY(ex_count_files(t, t->path, &files));
    if (files == expected)
        return BAGS_OK;
    return bags_target_fail(t, BAGS_ERROR_VALUE,
        "has %" PRIu64 " files (expected %" PRIu64 "): some are not of this export",
        files, expected);
}

/* ---- names of shards ---- */

/* The ending of a path, if the format has it; NULL: none. */
static const char *ex_ending(const bags_exporter *exporter, const char *path) {
    size_t size = strlen(path);
    for (const char *at = exporter->endings; *at;) {
        size_t length = strcspn(at, " ");
        size_t i = 0;
        while (i < length && length < size &&
               (path[size - length + i] | 0x20) == (at[i] | 0x20))
            i++;
        if (length && i == length && path[size - length - 1] != '/')
            return path + size - length;
        at += length + (at[length] == ' ');
    }
    return NULL;
}

/* Split OUT: the directory of its shards, and the text before and after their numbers. */
typedef struct ex_names {
    const char *directory, *before, *after;
} ex_names;

static bags_code ex_split(bags_target *t, ex_names *names) {
    const char *ending = ex_ending(t->exporter, t->path);
    const char *slash = strrchr(t->path, '/'), *base = slash ? slash + 1 : t->path;
    size_t length = strcspn(t->exporter->endings, " ");
    if (t->exporter->always_sharded || !ending) {
        names->directory = t->path;
        names->before = t->exporter->always_sharded ? "shard." : "";
        names->after = bags_target_format(t, "%.*s", (int)length, t->exporter->endings);
    } else {
        names->directory =
            slash ? bags_target_format(
                        t, "%.*s", (int)(slash - t->path + (slash == t->path)), t->path)
                  : ".";
        names->before = bags_target_format(t, "%.*s-", (int)(ending - base), base);
        names->after = ending;
    }
    return names->directory && names->before && names->after ? BAGS_OK
                                                             : BAGS_ERROR_MEMORY;
}

char *bags_target_shard_path(bags_target *t) {
    ex_names names;
    if (!t->sharded)
        return bags_target_format(t, "%s", t->path);
    if (ex_split(t, &names))
        return NULL;
    bool here = !strcmp(names.directory, ".") && strcmp(t->path, ".") != 0;
    return bags_target_format(t,
        t->exporter->always_sharded ? "%s%s%s%05" PRIu64 "%s" : "%s%s%s%06" PRIu64 "%s",
        here ? "" : names.directory, here ? "" : "/", names.before, t->shard,
        names.after);
}

bags_code bags_target_put_shard(bags_target *t, bags_code (*put)(bags_target *target)) {
    char *path = bags_target_shard_path(t);
    FORMAT_TRY(path ? bags_target_file_open(t, path) : BAGS_ERROR_MEMORY);
    for (bool more = true;;) {
        FORMAT_TRY(bags_target_next(t, &more));
        if (!more)
            return BAGS_OK;
        FORMAT_TRY(put(t));
    }
}

typedef struct ex_listing {
    const bags_target *t;
    ex_names names;
    uint64_t least; /* smaller numbers of this worker are its own */
    uint64_t others, found;
    char name[300];
} ex_listing;

/* Count files with names of shards: of this worker, or of none. */
static int ex_find_shard(void *user, const char *name) {
    ex_listing *in = (ex_listing *)user;
    size_t before = strlen(in->names.before), size = strlen(name);
    if (strncmp(name, in->names.before, before))
        return 0;
    size_t digits = strspn(name + before, "0123456789"), at = before + digits;
    size_t after = strlen(in->names.after);
    bool fits = digits && !strncmp(name + at, in->names.after, after) &&
                (size == at + after || !strcmp(name + at + after, ".partial"));
    if (!fits)
        return 0;
    uint64_t number = strtoull(name + before, NULL, 10);
    uint64_t stop = in->t->options.shard_stop;
    bool own = stop < 2 || number % stop == in->t->options.shard_start ||
               number >= in->t->shard_count;
    if (!own || number < in->least)
        return 0;
    in->found++;
    (void)snprintf(in->name, sizeof in->name, "%s", name);
    return 0;
}

static int ex_count_name(void *user, const char *name) {
    (void)name;
    ++*(uint64_t *)user;
    return 0;
}

static bags_code ex_list_shards(bags_target *t, uint64_t least, ex_listing *out) {
    const bags_io *io = bags_io_local();
    memset(out, 0, sizeof *out);
    out->t = t;
    out->least = least;
    FORMAT_TRY(ex_split(t, &out->names));
    int error = io->list(io->user, out->names.directory, ex_find_shard, out);
    return error && error != ENOENT
               ? bags_fail_io(io, error, out->names.directory, "list", t->err)
               : BAGS_OK;
}

/* ---- the export ---- */

static bags_code ex_check_options(bags_target *t) {
    const bags_export_options *o = &t->options;
    bool files = *t->exporter->endings != 0;
    if (o->shard_stop ? o->shard_start >= o->shard_stop : o->shard_start > 0)
        return bags_target_fail(
            t, BAGS_ERROR_ARGUMENT, "invalid worker (shard_start >= shard_stop)");
    if (!files && !t->exporter->always_sharded && (o->shard_size || o->shard_length))
        return bags_target_fail(t, BAGS_ERROR_ARGUMENT,
            "%s has a file per datapoint, and no shards", t->exporter->name);
    if (o->shard_stop > 1 && o->shard_size && !o->shard_length)
        return bags_target_fail(t, BAGS_ERROR_ARGUMENT,
            "workers need shards of one length: use a shard length, not a shard size");
    if (o->shard_size && o->shard_length && o->shard_stop > 1)
        return bags_target_fail(t, BAGS_ERROR_ARGUMENT,
            "with several workers a shard length and a shard size are mutually "
            "exclusive");
    t->sharded = files && (t->exporter->always_sharded || o->shard_size ||
                              o->shard_length || o->shard_stop);
    t->shard_count = o->shard_stop > 1 ? o->shard_stop : 1;
    if (o->shard_length && t->length)
        t->shard_count = (t->length - 1) / o->shard_length + 1;
    else if (o->shard_length)
        t->shard_count = 1;
    if (o->metadata.data && t->exporter->has_metadata &&
        !format_is_metadata(o->metadata))
        return bags_fail(t->err, BAGS_ERROR_CORRUPT,
            "%s: info.json: not a JSON object of at most 16 MiB",
            bags_path_tail(bags_reader_path(t->reader)));
    for (size_t i = 0; o->rows && i < o->rows_count; i++)
        if (o->rows[i] >= bags_reader_length(t->reader))
            return bags_fail(t->err, BAGS_ERROR_RANGE,
                "%s: index %" PRIu64 " out of range (length %" PRIu64 ")",
                bags_path_tail(bags_reader_path(t->reader)), o->rows[i],
                bags_reader_length(t->reader));
    return BAGS_OK;
}

static bags_code ex_refuse(bags_target *t, const char *path, const char *why) {
    return bags_fail(t->err, BAGS_ERROR_EXISTS, "%s: %s", bags_path_tail(path), why);
}

/* Refuse an OUT that exists, unless it is resumed or other workers write it. */
static bags_code ex_check_out(bags_target *t, bool unfinished) {
    const bags_io *io = bags_io_local();
    bool directory = t->exporter->always_sharded || !*t->exporter->endings ||
                     (t->sharded && !ex_ending(t->exporter, t->path));
    bags_path_kind kind = ex_kind(t->path);
    ex_listing found;
    uint64_t names = 0;
    if (unfinished && !t->options.resume)
        return ex_refuse(t, t->path,
            "an export to it is unfinished; continue it with --resume, or remove it, "
            "and its file that ends in .unfinished");
    if (directory && kind == BAGS_PATH_FILE)
        return ex_refuse(t, t->path, "exists and is not a directory");
    if (!directory && kind == BAGS_PATH_DIRECTORY)
        return ex_refuse(t, t->path, "exists and is a directory");
    if (t->options.resume)
        return BAGS_OK;
    if (!t->sharded && !directory && kind != BAGS_PATH_NONE)
        return ex_refuse(t, t->path, "already exists");
    if (directory && kind == BAGS_PATH_DIRECTORY && t->options.shard_stop < 2) {
        int error = io->list(io->user, t->path, ex_count_name, &names);
        if (error)
            return bags_fail_io(io, error, t->path, "list", t->err);
        if (names)
            return ex_refuse(t, t->path, "exists and is not an empty directory");
    }
    if (!t->sharded)
        return BAGS_OK;
    FORMAT_TRY(ex_list_shards(t, 0, &found));
    return found.found ? ex_refuse(t, found.name, "already exists") : BAGS_OK;
}

static bags_code ex_start(bags_target *t) {
    const bags_io *io = bags_io_local();
    char *marker = t->options.shard_stop > 1
                       ? bags_target_format(t, "%s.unfinished-%" PRIu64, t->path,
                             t->options.shard_start)
                       : bags_target_format(t, "%s.unfinished", t->path);
    if (!marker)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(ex_check_out(t, ex_kind(marker) != BAGS_PATH_NONE));
    FORMAT_TRY(ex_make_parents(t, marker));
    t->marker_path = marker;
    bags_code code =
        format_open_locked(io, marker, t->path, "export", &t->marker, t->err);
    if (code)
        t->marker = NULL;
    if (!code && t->exporter->always_sharded) {
        char *inside = bags_target_format(t, "%s/", t->path);
        code = inside ? ex_make_parents(t, inside) : BAGS_ERROR_MEMORY;
    }
    return code;
}

/* All shards of this worker, in the order of their numbers. */
static bags_code ex_write_shards(bags_target *t) {
    uint64_t step = t->options.shard_stop > 1 ? t->options.shard_stop : 1;
    uint64_t start = 0, stop = t->length;
    if (t->options.shard_size && step == 1) {
        uint64_t each = t->options.shard_length;
        for (t->shard = 0; t->shard == 0 || t->next < t->length; t->shard++) {
            t->stop = each && t->length - t->next > each ? t->next + each : t->length;
            t->shard_bytes = 0;
            FORMAT_TRY(t->exporter->shard(t));
        }
        t->shard_count = t->shard;
        return BAGS_OK;
    }
    for (t->shard = t->options.shard_start;
         bags_target_range(t, t->shard, &start, &stop); t->shard += step) {
        t->next = start;
        t->stop = stop;
        FORMAT_TRY(t->exporter->shard(t));
    }
    return BAGS_OK;
}

static bags_code ex_run(bags_target *t) {
    const bags_io *io = bags_io_local();
    ex_listing found;
    t->length = t->options.rows ? t->options.rows_count : bags_reader_length(t->reader);
    t->report.existed = true;
    /* Names are made from the path. */
    t->path = bags_target_format(t, "%.*s", (int)format_path_size(t->path), t->path);
    if (!t->path)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(ex_check_options(t));
    FORMAT_TRY(ex_add_fields(t));
    t->state = bags_target_alloc(t, 1, t->exporter->state_size + 1);
    if (!t->state)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(t->exporter->open(t));
    FORMAT_TRY(ex_start(t));
    FORMAT_TRY(ex_write_shards(t));
    if (t->exporter->finish)
        FORMAT_TRY(t->exporter->finish(t));
    if (t->sharded) {
        FORMAT_TRY(ex_list_shards(t, t->shard_count, &found));
        if (found.found)
            return ex_fail_file(
                t, found.name, "is not a file of this export; remove it");
    }
    FORMAT_TRY(bags_reader_check(t->reader, t->err));
    int error = io->remove(io->user, t->marker_path);
    return error ? bags_fail_io(io, error, t->marker_path, "remove", t->err)
                 : ex_sync_parent(t, t->marker_path);
}

/* Remove a file, and the directories in OUT that only had it. */
static void ex_remove(bags_target *t, const char *file) {
    const bags_io *io = bags_io_local();
    char path[FORMAT_PATH];
    size_t out = strlen(t->path);
    (void)snprintf(path, sizeof path, "%s", file);
    io->remove(io->user, path);
    for (char *slash; (slash = strrchr(path, '/')) && (size_t)(slash - path) > out;) {
        *slash = 0;
        if (strncmp(path, t->path, out) != 0 || io->remove_dir(io->user, path))
            return;
    }
}

/* After a failure: remove the files, and the mark, if nothing is worth keeping. */
static void ex_clean(bags_target *t, bags_code code) {
    const bags_io *io = bags_io_local();
    for (bags_export_file *to = &t->own; to; to = to->next)
        if (to->file)
            io->close(io->user, to->file);
    bool keep = code == BAGS_OK || code == BAGS_ERROR_IO || t->options.resume ||
                t->report.files > 0;
    if (t->marker && !keep) {
        for (bags_export_file *to = &t->own; to; to = to->next)
            if (*to->partial)
                ex_remove(t, to->partial);
        io->remove(io->user, t->marker_path);
    }
    if (t->marker)
        io->close(io->user, t->marker);
}

bags_code bags_export(const bags_reader *reader, const bags_exporter *exporter,
    const char *path, const bags_export_options *options, bags_export_report *report,
    bags_error *err) {
    const bags_allocator use = bags_allocator_of(options ? options->allocator : NULL);
    bags_error ignored;
    bags_target *t = (bags_target *)use.resize(use.user, NULL, 0, sizeof *t);
    if (!t)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    memset(t, 0, sizeof *t);
    t->reader = reader;
    t->exporter = exporter;
    t->path = path;
    t->err = err ? err : &ignored;
    if (options)
        t->options = *options;
    t->to = &t->own;
    t->scratch = t->compare = bags_buffer_of(t->options.allocator);
    bags_code code = ex_run(t);
    if (t->state && exporter->close)
        exporter->close(t);
    ex_clean(t, code);
    if (!code && report)
        *report = t->report;
    for (size_t i = 0; i < t->count && t->fields; i++) {
        bags_buffer_free(&t->fields[i].values_buffer);
        for (size_t j = 0; j < t->fields[i].scratch_count; j++)
            bags_buffer_free(&t->fields[i].scratch[j]);
    }
    for (bags_export_bytes *bytes = t->bytes; bytes; bytes = bytes->next)
        bags_buffer_free(&bytes->buffer);
    bags_buffer_free(&t->scratch);
    bags_buffer_free(&t->compare);
    bags_row_free(&t->row);
    for (ex_block *block = (ex_block *)t->blocks; block;) {
        ex_block *next = block->next;
        use.resize(use.user, block, block->size, 0);
        block = next;
    }
    use.resize(use.user, t, sizeof *t, 0);
    return code;
}
