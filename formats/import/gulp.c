/*
 * gulp.c - directories that GulpIO wrote: videos as JPEG frames. On json-c and
 * msgpack-c.
 *
 * meta_N.gmeta is a JSON object with, for each id, "frame_info", a list of [offset,
 * padding, size with padding], and "meta_data", a list; data_N.gulp contains the
 * frames. A video is a datapoint: `id: utf8`, `frames: jpeg[]` as stored, without
 * the padding, and `meta: msgpack`, all of meta_data. The source is the directory
 * or one of these files. There are no checksums: a frame that is not within its file,
 * or does not begin like a JPEG, is an error.
 */
#include "json.h"

#include <msgpack.h>

typedef struct gu_source {
    bags_import_arena arena; /* which contains this */
    char **paths;            /* of the .gmeta files, */
    uint64_t *stops;         /* and the index after the last video of each */
    size_t count, at;        /* the one that is open */
    bags_import_file file;   /* its .gulp */
    bags_buffer text, frames, meta, values;
    size_t meta_size;
    json_object *videos;
    struct json_object_iterator next;
    uint64_t index; /* of the video at `next` */
    bags_field fields[3];
    bags_entry entries[3];
    bags_value id, meta_value;
} gu_source;

/* ---- JSON as msgpack ---- */

/* What msgpack-c writes to. Nonzero if out of memory. */
static int gu_write(void *user, const char *data, size_t size) {
    gu_source *source = (gu_source *)user;
    if (bags_buffer_reserve(&source->meta, source->meta_size + size, NULL))
        return -1;
    if (size)
        memcpy(source->meta.data + source->meta_size, data, size);
    source->meta_size += size;
    return 0;
}

static int gu_pack_text(msgpack_packer *to, const char *text, size_t size) {
    int failed = msgpack_pack_str(to, size);
    return failed ? failed : msgpack_pack_str_body(to, text, size);
}

/* At most 128 levels: see json.h. */
static int gu_pack(msgpack_packer *to, json_object *json) {
    int failed;
    switch (json_object_get_type(json)) {
    case json_type_boolean:
        return json_object_get_boolean(json) ? msgpack_pack_true(to)
                                             : msgpack_pack_false(to);
    case json_type_int:
        return json_object_get_int64(json) < 0
                   ? msgpack_pack_int64(to, json_object_get_int64(json))
                   : msgpack_pack_uint64(to, json_object_get_uint64(json));
    case json_type_double:
        return msgpack_pack_double(to, json_object_get_double(json));
    case json_type_string:
        return gu_pack_text(to, json_object_get_string(json),
            (size_t)json_object_get_string_len(json));
    case json_type_array:
        failed = msgpack_pack_array(to, json_object_array_length(json));
        for (size_t i = 0; !failed && i < json_object_array_length(json); i++)
            failed = gu_pack(to, json_object_array_get_idx(json, i));
        return failed;
    case json_type_object: {
        struct json_object_iterator at = json_object_iter_begin(json);
        struct json_object_iterator end = json_object_iter_end(json);
        failed = msgpack_pack_map(to, (size_t)json_object_object_length(json));
        for (; !failed && !json_object_iter_equal(&at, &end);
             json_object_iter_next(&at)) {
            const char *name = json_object_iter_peek_name(&at);
            failed = gu_pack_text(to, name, strlen(name));
            if (!failed)
                failed = gu_pack(to, json_object_iter_peek_value(&at));
        }
        return failed;
    }
    case json_type_null:
    default:
        return msgpack_pack_nil(to);
    }
}

/* ---- chunks ---- */

static void gu_close_chunk(gu_source *source) {
    bags_import_file_close(&source->file);
    json_object_put(source->videos);
    source->videos = NULL;
}

/* "x/data_3.gulp" for "x/meta_3.gmeta", or the reverse. */
static char *gu_pair(
    gu_source *source, const char *path, const char *to, bags_error *err) {
    const char *base = bags_import_base(path), *dot = strrchr(base, '.');
    const char *from = !strcmp(to, "data") ? "meta" : "data";
    size_t skip = strncmp(base, from, 4) == 0 ? 4 : 0;
    return bags_import_format(&source->arena, err, "%.*s%s%.*s.%s",
        (int)(base - path), path, skip ? to : "", (int)(dot - base - (int)skip),
        base + skip, !strcmp(to, "data") ? "gulp" : "gmeta");
}

static bags_code gu_open_chunk(gu_source *source, size_t at, bags_error *err) {
    const char *path = source->paths[at];
    source->at = at;
    source->index = at ? source->stops[at - 1] : 0;
    bags_code code =
        bags_import_json(path, &source->text, &source->videos, err);
    if (code)
        return code;
    source->next = json_object_iter_begin(source->videos);
    const char *data = gu_pair(source, path, "data", err);
    return data ? bags_import_file_open(&source->file, data, err)
                : BAGS_ERROR_MEMORY;
}

/* ---- videos ---- */

static bags_code gu_fail(const gu_source *source, const char *id, size_t frame,
    const char *what, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: id \"%.100s\": frame %" PRIu64 ": %s", source->file.path, id,
        (uint64_t)frame, what);
}

/* Read a frame to `frames` at *done. */
static bags_code gu_read_frame(gu_source *source, const char *id, size_t i,
    json_object *place, size_t *done, bags_error *err) {
    uint64_t parts[3]; /* offset, padding, size */
    for (size_t j = 0; j < 3; j++) {
        json_object *number = json_object_is_type(place, json_type_array)
                                  ? json_object_array_get_idx(place, j)
                                  : NULL;
        if (!json_object_is_type(number, json_type_int) ||
            json_object_array_length(place) != 3 ||
            json_object_get_int64(number) < 0)
            return gu_fail(
                source, id, i, "its place is not [offset, padding, size]", err);
        parts[j] = json_object_get_uint64(number);
    }
    if (parts[1] > parts[2] || parts[2] > source->file.size ||
        parts[0] > source->file.size - parts[2])
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: id \"%.100s\": frame %" PRIu64
            ": out of range (offset %" PRIu64 ", padding %" PRIu64
            ", size %" PRIu64 "; the file has %" PRIu64 " bytes)",
            source->file.path, id, (uint64_t)i, parts[0], parts[1], parts[2],
            source->file.size);
    size_t size = (size_t)(parts[2] - parts[1]);
    if (size > source->file.size - *done)
        return gu_fail(source, id, i, "the frames overlap", err);
    bags_code code = bags_buffer_reserve(&source->frames, *done + size, err);
    if (!code)
        code = bags_import_file_read(
            &source->file, parts[0], source->frames.data + *done, size, err);
    if (code)
        return code;
    const char *type = bags_import_magic(source->frames.data + *done, size);
    if (!type || strcmp(type, "jpeg") != 0)
        return gu_fail(source, id, i, "not a JPEG", err);
    ((bags_value *)(void *)source->values.data)[i] = bags_blob(NULL, size);
    *done += size;
    return BAGS_OK;
}

static bags_code gu_read_video(
    gu_source *source, const char *id, json_object *video, bags_error *err) {
    json_object *meta = NULL;
    json_object *places =
        bags_import_member(video, "frame_info", json_type_array);
    if (!places || !json_object_object_get_ex(video, "meta_data", &meta))
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: id \"%.100s\": not an object with the list \"frame_info\" and "
            "\"meta_data\"",
            source->paths[source->at], id);
    size_t count = json_object_array_length(places), done = 0;
    bags_code code = bags_buffer_reserve(
        &source->values, (count + 1) * sizeof(bags_value), err);
    if (!code)
        code = bags_buffer_reserve(&source->frames, 1, err);
    for (size_t i = 0; !code && i < count; i++)
        code = gu_read_frame(
            source, id, i, json_object_array_get_idx(places, i), &done, err);
    if (code)
        return code;
    msgpack_packer packer;
    msgpack_packer_init(&packer, source, gu_write);
    source->meta_size = 0;
    if (gu_pack(&packer, meta))
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    bags_value *values = (bags_value *)(void *)source->values.data;
    done = 0;
    for (size_t i = 0; i < count; i++) {
        values[i].data = source->frames.data + done;
        done += values[i].size;
    }
    source->id = bags_utf8(id);
    source->meta_value = bags_blob(source->meta.data, source->meta_size);
    source->entries[0].values = values;
    source->entries[0].count = count;
    return BAGS_OK;
}

/* ---- the source ---- */

static void gu_close(void *state) {
    gu_source *source = (gu_source *)state;
    if (!source)
        return;
    gu_close_chunk(source);
    bags_buffer_free(&source->text);
    bags_buffer_free(&source->frames);
    bags_buffer_free(&source->meta);
    bags_buffer_free(&source->values);
    bags_import_arena arena = source->arena;
    bags_import_free(&arena);
}

static bool gu_accept(const char *name) {
    return bags_import_ends(name, ".gmeta");
}

static bool gu_is_data(const char *name) {
    return bags_import_ends(name, ".gulp");
}

/* Count the videos. */
static bags_code gu_scan(gu_source *source, const char *path, bags_error *err) {
    bags_code code = bags_import_files(
        path, gu_accept, &source->arena, &source->paths, &source->count, err);
    if (code)
        return code;
    source->stops = (uint64_t *)bags_import_alloc(
        &source->arena, source->count, sizeof *source->stops, err);
    if (!source->stops)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; !code && i < source->count; i++) {
        if (gu_is_data(source->paths[i]))
            source->paths[i] = gu_pair(source, source->paths[i], "meta", err);
        if (!source->paths[i])
            return BAGS_ERROR_MEMORY;
        if (!gu_accept(source->paths[i]))
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: neither a directory nor a .gmeta or .gulp file", path);
        gu_close_chunk(source);
        code = gu_open_chunk(source, i, err);
        if (!code)
            source->stops[i] =
                source->index +
                (uint64_t)json_object_object_length(source->videos);
    }
    gu_close_chunk(source);
    return code;
}

static bags_code gu_open(const char *path, const bags_allocator *allocator,
    void **out, bags_source_info *info, bags_error *err) {
    static const bags_field fields[3] = {
        {"frames", "jpeg[]"}, {"id", "utf8"}, {"meta", "msgpack"}};
    bags_import_arena arena = bags_import_arena_start(allocator);
    gu_source *source =
        (gu_source *)bags_import_alloc(&arena, 1, sizeof *source, err);
    if (!source)
        return BAGS_ERROR_MEMORY;
    source->arena = arena;
    source->text = source->frames = source->meta = source->values =
        bags_import_buffer_start(allocator);
    bags_code code = gu_scan(source, path, err);
    if (code) {
        gu_close(source);
        return code;
    }
    memcpy(source->fields, fields, sizeof fields);
    for (size_t i = 0; i < 3; i++) {
        source->entries[i].field = fields[i].name;
        source->entries[i].count = 1;
    }
    source->entries[1].values = &source->id;
    source->entries[2].values = &source->meta_value;
    info->fields = source->fields;
    info->count = 3;
    info->length = source->stops[source->count - 1];
    *out = source;
    return BAGS_OK;
}

static bags_code gu_read(
    void *state, uint64_t index, const bags_entry **entries, bags_error *err) {
    gu_source *source = (gu_source *)state;
    size_t at = source->at;
    bags_code code = BAGS_OK;
    *entries = NULL;
    if (index >= source->stops[source->count - 1])
        return BAGS_OK;
    if (!source->videos)
        at = 0;
    while (index >= source->stops[at])
        at++;
    if (!source->videos || at != source->at) {
        gu_close_chunk(source);
        code = gu_open_chunk(source, at, err);
    }
    if (code)
        return code;
    struct json_object_iterator end = json_object_iter_end(source->videos);
    for (;
         source->index < index && !json_object_iter_equal(&source->next, &end);
         source->index++)
        json_object_iter_next(&source->next);
    if (source->index != index || json_object_iter_equal(&source->next, &end))
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: changed while it was read", source->paths[at]);
    code = gu_read_video(source, json_object_iter_peek_name(&source->next),
        json_object_iter_peek_value(&source->next), err);
    json_object_iter_next(&source->next);
    source->index++;
    if (!code)
        *entries = source->entries;
    return code;
}

static bool gu_detect(const char *path) {
    return bags_import_has_files(path, gu_accept) ||
           (gu_is_data(path) && bags_import_kind(path) == BAGS_PATH_FILE);
}

const bags_importer bags_import_gulp = {
    "gulp", gu_detect, gu_open, gu_read, gu_close};
