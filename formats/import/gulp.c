/*
 * gulp.c - imports directories written by GulpIO: videos as JPEG frames. Uses json-c
 * and msgpack-c.
 *
 * meta_N.gmeta is a JSON object that has, for each id, "frame_info", a list of [offset,
 * padding, size with padding], and "meta_data", a list; data_N.gulp contains the
 * frames. Each video is a datapoint: `id: utf8`, `frames: jpeg[]` as stored but without
 * padding, and `meta: msgpack`, all of meta_data. The source is the directory or one of
 * these files. There are no checksums; a frame that exceeds its file or does not begin
 * like a JPEG is an error.
 */
#include "detect.h"
#include "json.h"
#include "pack.h"
#include "try.h"

typedef struct gu_state {
    uint64_t *stops; /* the index after the last video of each .gmeta file */
    size_t at;       /* number of the open chunk */
    json_object *videos;
    struct json_object_iterator next;
    uint64_t index; /* index of the video at `next` */
    bags_buffer *meta;
    size_t meta_size;
} gu_state;

/* ---- JSON as msgpack ---- */

/* The write callback of msgpack-c. Returns nonzero if out of memory. */
static int gu_write(void *user, const char *data, size_t size) {
    bags_source *s = (bags_source *)user;
    gu_state *g = (gu_state *)s->state;
    if (bags_source_reserve(s, &g->meta, g->meta_size + size))
        return -1;
    if (size)
        memcpy(g->meta->data + g->meta_size, data, size);
    g->meta_size += size;
    return 0;
}

/* ---- chunks ---- */

/* Return "x/data_3.gulp" for "x/meta_3.gmeta", or the reverse. */
static char *gu_pair(bags_source *s, const char *path, const char *to) {
    const char *base = bags_import_base(path), *dot = strrchr(base, '.');
    const char *from = !strcmp(to, "data") ? "meta" : "data";
    size_t skip = strncmp(base, from, 4) == 0 ? 4 : 0;
    return bags_source_format(s, "%.*s%s%.*s.%s", (int)(base - path), path,
        skip ? to : "", (int)(dot - base - (int)skip), base + skip,
        !strcmp(to, "data") ? "gulp" : "gmeta");
}

static bags_code gu_open_chunk(bags_source *s, size_t at) {
    gu_state *g = (gu_state *)s->state;
    json_object_put(g->videos);
    g->videos = NULL;
    g->at = at;
    g->index = at ? g->stops[at - 1] : 0;
    FORMAT_TRY(bags_source_json(s, s->paths[at], &g->videos));
    g->next = json_object_iter_begin(g->videos);
    const char *data = gu_pair(s, s->paths[at], "data");
    return data ? bags_source_open_file(s, data) : BAGS_ERROR_MEMORY;
}

/* ---- videos ---- */

static bags_code gu_fail(
    bags_source *s, const char *id, size_t frame, const char *what) {
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "id \"%.100s\": frame %" PRIu64 ": %s", id, (uint64_t)frame, what);
}

/* Read a frame. *done counts the bytes of all frames. */
static bags_code gu_read_frame(bags_source *s, const char *id, size_t i,
    json_object *place, uint64_t *done, bags_value *out) {
    uint64_t parts[3]; /* offset, padding, size */
    for (size_t j = 0; j < 3; j++) {
        json_object *number = json_object_is_type(place, json_type_array)
                                  ? json_object_array_get_idx(place, j)
                                  : NULL;
        if (!json_object_is_type(number, json_type_int) ||
            json_object_array_length(place) != 3 || json_object_get_int64(number) < 0)
            return gu_fail(s, id, i, "its place is not [offset, padding, size]");
        parts[j] = json_object_get_uint64(number);
    }
    if (parts[1] > parts[2] || parts[2] > s->file.size ||
        parts[0] > s->file.size - parts[2])
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "id \"%.100s\": frame %" PRIu64 ": out of range (offset %" PRIu64
            ", padding %" PRIu64 ", size %" PRIu64 "; the file has %" PRIu64 " bytes)",
            id, (uint64_t)i, parts[0], parts[1], parts[2], s->file.size);
    *done += parts[2] - parts[1];
    if (*done > s->file.size)
        return gu_fail(s, id, i, "the frames overlap");
    bags_view frame;
    FORMAT_TRY(bags_source_copy(s, parts[0], parts[2] - parts[1], &frame));
    const char *type = bags_import_magic(frame.data, frame.size);
    if (!type || strcmp(type, "jpeg") != 0)
        return gu_fail(s, id, i, "not a JPEG");
    *out = bags_blob(frame.data, frame.size);
    return BAGS_OK;
}

static bags_code gu_read_video(bags_source *s, const char *id, json_object *video) {
    gu_state *g = (gu_state *)s->state;
    json_object *meta = NULL;
    json_object *places = bags_import_member(video, "frame_info", json_type_array);
    if (!places || !json_object_object_get_ex(video, "meta_data", &meta))
        return bags_fail(s->err, BAGS_ERROR_CORRUPT,
            "%s: id \"%.100s\": not an object with the list \"frame_info\" and "
            "\"meta_data\"",
            s->paths[g->at], id);
    size_t count = json_object_array_length(places);
    uint64_t done = 0;
    bags_value *frames = (bags_value *)bags_source_alloc(s, count, sizeof *frames);
    if (!frames)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++)
        FORMAT_TRY(gu_read_frame(
            s, id, i, json_object_array_get_idx(places, i), &done, &frames[i]));
    msgpack_packer packer;
    msgpack_packer_init(&packer, s, gu_write);
    g->meta_size = 0;
    if (bags_import_pack(&packer, meta))
        return bags_source_no_memory(s);
    s->entries[0].values = frames;
    s->entries[0].count = count;
    s->values[1] = bags_utf8(id);
    s->values[2] = bags_blob(g->meta->data, g->meta_size);
    return BAGS_OK;
}

/* ---- the source ---- */

static void gu_close(bags_source *s) {
    json_object_put(((gu_state *)s->state)->videos);
}

static bool gu_is_data(const char *name) { return bags_import_ends(name, ".gulp"); }

/* Find the .gmeta for every file, each once. A .gulp without a .gmeta is an error. */
static bags_code gu_find(bags_source *s) {
    size_t count = 0;
    FORMAT_TRY(bags_source_files(s, bags_import_is_gulp_name));
    for (size_t i = 0; i < s->path_count; i++) {
        if (!bags_import_is_gulp_name(s->paths[i]))
            return bags_fail(
                s->err, BAGS_ERROR_TYPE, "%s: not a .gmeta or .gulp file", s->paths[i]);
        if (gu_is_data(s->paths[i]))
            s->paths[i] = gu_pair(s, s->paths[i], "meta");
        if (!s->paths[i])
            return BAGS_ERROR_MEMORY;
    }
    qsort(s->paths, s->path_count, sizeof *s->paths, bags_import_compare);
    for (size_t i = 0; i < s->path_count; i++)
        if (count == 0 || strcmp(s->paths[i], s->paths[count - 1]) != 0)
            s->paths[count++] = s->paths[i];
    s->path_count = count;
    return BAGS_OK;
}

/* Count the videos. */
static bags_code gu_open(bags_source *s) {
    gu_state *g = (gu_state *)s->state;
    bags_code code = gu_find(s);
    if (code)
        return code;
    g->stops = (uint64_t *)bags_source_alloc(s, s->path_count, sizeof *g->stops);
    if (!g->stops)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; !code && i < s->path_count; i++) {
        code = gu_open_chunk(s, i);
        s->length = g->stops[i] =
            g->index + (uint64_t)(code ? 0 : json_object_object_length(g->videos));
    }
    bags_source_field(s, "frames", "jpeg[]");
    bags_source_field(s, "id", "utf8");
    bags_source_field(s, "meta", "msgpack");
    return code;
}

static bags_code gu_read(bags_source *s, uint64_t index) {
    gu_state *g = (gu_state *)s->state;
    size_t at = g->at;
    if (s->ended)
        return BAGS_OK;
    if (index < g->index)
        at = 0; /* open has read all chunks */
    while (index >= g->stops[at])
        at++;
    FORMAT_TRY(at == g->at && index >= g->index ? BAGS_OK : gu_open_chunk(s, at));
    struct json_object_iterator end = json_object_iter_end(g->videos);
    for (; g->index < index && !json_object_iter_equal(&g->next, &end); g->index++)
        json_object_iter_next(&g->next);
    if (g->index != index || json_object_iter_equal(&g->next, &end))
        return bags_source_fail(s, BAGS_ERROR_CORRUPT, "changed while it was read");
    bags_code code = gu_read_video(
        s, json_object_iter_peek_name(&g->next), json_object_iter_peek_value(&g->next));
    json_object_iter_next(&g->next);
    g->index++;
    return code;
}

const bags_importer bags_import_gulp = {
    "gulp", bags_import_is_gulp, sizeof(gu_state), gu_open, gu_read, gu_close};
