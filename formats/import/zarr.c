/*
 * zarr.c - imports groups and arrays of Zarr 2 and 3, L5Kit datasets and the replay
 * buffers of diffusion-policy, using json-c, libblosc 1.16, libzip 1.5, zlib, zstd and
 * lz4 (Debian: libjson-c-dev libblosc-dev libzip-dev zlib1g-dev libzstd-dev
 * liblz4-dev).
 *
 * A source is a directory or a .zip file. Its arrays must have the same length:
 * datapoint i is row i of each. An array of shape [] is repeated in every datapoint. A
 * field is named after its array; groups and members of a structured dtype are joined
 * by dots. If the source itself is an array, the fields are its members, or "data".
 *
 *     scalar      integers: i64, u64; dates and times: i64, their number of units
 *                 since 1970, and the field's name ends in the unit: "time_ns"; NaT is
 *                 -2^63; others: array(DTYPE)
 *     array       array(DTYPE,shape of a row and of the member)
 *     <U          utf8;  |S and |V: bytes (|S without its trailing NULs)
 *
 * A replay buffer (it has meta/episode_ends) has one datapoint per episode: the rows of
 * the arrays in data/ are sequences, named without this prefix.
 *
 * An L5Kit dataset has one datapoint per frame. Members of frames are plain fields;
 * members of agents and traffic light faces are sequences ("agents.centroid"); members
 * of the frame's scene are repeated ("scenes.host"), and scene_index is the scene's
 * number. Attributes and agents_mask (derived by L5Kit from other arrays) are left out.
 *
 * A missing chunk consists of the fill value; the dtype must represent this value
 * exactly. An array that has files, but no chunk under the names implied by its
 * metadata, is an error.
 *
 * Rejected: filters, order F, other compressors and codecs, objects, and arrays of
 * strings or structures in a row or member.
 */
#include "detect.h"
#include "zarr_chunks.h"

/* ---- values ---- */

/* Convert UCS-4 to UTF-8 without trailing NULs; the result is not larger. Surrogates
 * and numbers above U+10FFFF become invalid UTF-8, and writers refuse that. */
static size_t zr_utf8(
    const unsigned char *from, size_t size, bool big, unsigned char *out) {
    size_t made = 0;
    while (size >= 4 && !memcmp(from + size - 4, "\0\0\0\0", 4))
        size -= 4;
    for (size_t i = 0; i + 4 <= size; i += 4) {
        uint32_t c = (uint32_t)bags_load_bytes(from + i, 4, big);
        if (c > 0x10FFFF)
            out[made++] = 0xFF;
        else
            made = (size_t)(format_utf8(out + made, c) - out);
    }
    return made;
}

/* Get the value of a member in a row; its bytes are written to `out`. */
static bags_value zr_value(const zr_array *a, const zr_member *member,
    const unsigned char *row, unsigned char *out) {
    const unsigned char *from = row + member->offset;
    size_t size = member->size, count = a->row / a->item;
    if (member->kind == 'U') {
        size = zr_utf8(from, size, member->swap > 1, out);
        return bags_utf8_sized((const char *)out, size);
    }
    for (size_t i = 0; i < count; i++)
        bags_swap_bytes(out + i * size, from + i * a->item, size, member->swap);
    if (member->number)
        return bags_import_integer(member->dtype, out);
    if (member->kind == 'S')
        while (size > 0 && out[size - 1] == 0)
            size--;
    return bags_blob(out, member->dtype ? count * size : size);
}

/* Set the entries of the array's fields to the values of rows start to stop. */
static bags_code zr_rows(bags_source *s, zr_array *a, uint64_t start, uint64_t stop) {
    uint64_t count = stop - start;
    if (a->count == 0)
        return BAGS_OK; /* only padding */
    if (count > ZR_VALUES / (a->row + a->count * sizeof(bags_value)))
        return bags_source_fail(s, BAGS_ERROR_LIMIT,
            "%s: rows %" PRIu64 " to %" PRIu64 " are too large", a->key, start, stop);
    unsigned char *out = (unsigned char *)bags_source_alloc(s, (size_t)count, a->row);
    bags_value *values =
        (bags_value *)bags_source_alloc(s, (size_t)count * a->count, sizeof *values);
    if (!out || !values)
        return BAGS_ERROR_MEMORY;
    for (uint64_t r = start; r < stop; r++) {
        const unsigned char *row;
        FORMAT_TRY(zr_row(s, a, r, &row));
        for (size_t m = 0; m < a->count; m++) {
            const zr_member *member = &a->members[m];
            values[m * count + (r - start)] = zr_value(a, member, row, out);
            out += a->row / a->item * member->size;
        }
    }
    for (size_t m = 0; m < a->count; m++) {
        s->entries[a->first + m].values = values + m * count;
        s->entries[a->first + m].count = (size_t)count;
    }
    return BAGS_OK;
}

/* ---- L5Kit ---- */

static zr_array *zr_find(const zr_state *z, const char *name) {
    for (size_t i = 0; i < z->count; i++)
        if (strcmp(z->arrays[i].name, name) == 0)
            return &z->arrays[i];
    return NULL;
}

/* Find the member with this name, if it is two 64-bit integers: a start and a stop. */
static const zr_member *zr_interval(const zr_array *a, const char *name) {
    for (size_t i = 0; a && a->dims == 1 && i < a->count; i++)
        if (strcmp(a->members[i].name, name) == 0 && strchr("iu", a->members[i].kind) &&
            a->members[i].size == 16 && a->members[i].dims == 1 &&
            a->members[i].shape[0] == 2)
            return &a->members[i];
    return NULL;
}

/* Find the arrays of an L5Kit dataset, if the source is one. */
static bags_code zr_l5kit(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    zr_array *scenes = zr_find(z, "scenes"), *frames = zr_find(z, "frames");
    zr_array *agents = zr_find(z, "agents");
    zr_array *lights = zr_find(z, "traffic_light_faces");
    if (!lights)
        lights = zr_find(z, "tl_faces");
    if (!agents || agents->dims != 1 || !zr_interval(scenes, "frame_index_interval") ||
        !zr_interval(frames, "agent_index_interval"))
        return BAGS_OK;
    if (lights && (lights->dims != 1 ||
                      !zr_interval(frames, "traffic_light_faces_index_interval")))
        lights = NULL;
    for (size_t i = 0; i < z->count; i++) {
        zr_array *a = &z->arrays[i];
        bool known = a == scenes || a == frames || a == agents || a == lights;
        if (!known && strncmp(a->key, "agents_mask", 11) != 0)
            return bags_source_fail(s, BAGS_ERROR_TYPE,
                "%s: not an array of an L5Kit dataset; import it by itself", a->key);
        if (!known) {
            a->count = 0;
            bags_source_leave_out(s, "array", 1, "%s", a->name);
        }
    }
    z->scenes = scenes;
    z->frames = frames;
    z->agents = agents;
    z->lights = lights;
    return BAGS_OK;
}

/* Read the interval stored in a member of a row. */
static bags_code zr_refers(bags_source *s, zr_array *a, const char *name,
    const zr_array *to, uint64_t row, uint64_t *start, uint64_t *stop) {
    const zr_member *member = zr_interval(a, name);
    unsigned char bytes[16];
    const unsigned char *from;
    FORMAT_TRY(zr_row(s, a, row, &from));
    bags_swap_bytes(bytes, from + member->offset, 16, member->swap);
    *start = bags_load_bytes(bytes, 8, false);
    *stop = bags_load_bytes(bytes + 8, 8, false);
    if (*start <= *stop && *stop <= to->shape[0])
        return BAGS_OK;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "field \"%s.%s\": row %" PRIu64 ": invalid interval (%" PRId64 " to %" PRId64
        ", length %" PRIu64 ")",
        a->name, name, row, (int64_t)*start, (int64_t)*stop, to->shape[0]);
}

/* Rows that other rows refer to, as merged intervals. */
typedef struct zr_span {
    uint64_t start, stop;
} zr_span;

static int zr_compare_spans(const void *left, const void *right) {
    const zr_span *a = (const zr_span *)left, *b = (const zr_span *)right;
    return (a->start > b->start) - (a->start < b->start);
}

/* Report rows of `to` not referenced by any row of an array as left out. */
static bags_code zr_unused(bags_source *s, zr_array *a, const char *name,
    const zr_array *to, const char *what) {
    zr_span *spans = NULL;
    size_t count = 0;
    for (uint64_t row = 0; row < a->shape[0]; row++) {
        zr_span span;
        FORMAT_TRY(zr_refers(s, a, name, to, row, &span.start, &span.stop));
        if (span.start == span.stop)
            continue;
        if (count > 0 && spans[count - 1].stop == span.start) {
            spans[count - 1].stop = span.stop;
            continue;
        }
        spans = (zr_span *)bags_source_grow(s, spans, count, sizeof span);
        if (!spans)
            return BAGS_ERROR_MEMORY;
        spans[count++] = span;
    }
    if (count)
        qsort(spans, count, sizeof *spans, zr_compare_spans);
    uint64_t next = 0;
    for (size_t i = 0; i <= count; i++) {
        uint64_t start = i < count ? spans[i].start : to->shape[0];
        if (start > next)
            bags_source_leave_out(
                s, what, start - next, "%" PRIu64 " to %" PRIu64, next, start - 1);
        if (i < count && spans[i].stop > next)
            next = spans[i].stop;
    }
    return BAGS_OK;
}

/* Report the rows of an L5Kit dataset that belong to no frame. */
static bags_code zr_unused_rows(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    for (uint64_t row = 0; row < z->scenes->shape[0]; row++) {
        uint64_t start, stop;
        FORMAT_TRY(zr_refers(
            s, z->scenes, "frame_index_interval", z->frames, row, &start, &stop));
        if (start == stop)
            bags_source_leave_out(s, "empty scene", 1, "%" PRIu64, row);
    }
    FORMAT_TRY(
        zr_unused(s, z->frames, "agent_index_interval", z->agents, "unused agent"));
    if (z->lights)
        FORMAT_TRY(zr_unused(s, z->frames, "traffic_light_faces_index_interval",
            z->lights, "unused traffic light face"));
    return BAGS_OK;
}

/* Find the scene of a frame; scenes without frames are skipped. */
static bags_code zr_find_scene(bags_source *s, uint64_t frame) {
    zr_state *z = (zr_state *)s->state;
    while (frame >= z->scene_stop && z->scene < z->scenes->shape[0]) {
        uint64_t end = z->scene_stop;
        FORMAT_TRY(zr_rows(s, z->scenes, z->scene, z->scene + 1));
        FORMAT_TRY(zr_refers(s, z->scenes, "frame_index_interval", z->frames, z->scene,
            &z->scene_start, &z->scene_stop));
        if (z->scene_start < end && z->scene_start < z->scene_stop)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "field \"scenes.frame_index_interval\": row %" PRIu64
                ": overlaps an earlier scene",
                z->scene);
        if (z->scene_stop < end)
            z->scene_stop = end; /* empty */
        z->scene++;
    }
    if (frame < z->scene_start || frame >= z->scene_stop)
        return bags_source_fail(
            s, BAGS_ERROR_CORRUPT, "frames: row %" PRIu64 ": not in a scene", frame);
    s->values[s->count - 1] = bags_int((int64_t)(z->scene - 1));
    return zr_rows(s, z->scenes, z->scene - 1, z->scene);
}

static bags_code zr_read_frame(bags_source *s, uint64_t frame) {
    zr_state *z = (zr_state *)s->state;
    uint64_t start = 0, stop = 0;
    FORMAT_TRY(zr_find_scene(s, frame));
    FORMAT_TRY(zr_rows(s, z->frames, frame, frame + 1));
    FORMAT_TRY(zr_refers(
        s, z->frames, "agent_index_interval", z->agents, frame, &start, &stop));
    FORMAT_TRY(zr_rows(s, z->agents, start, stop));
    if (!z->lights)
        return BAGS_OK;
    FORMAT_TRY(zr_refers(s, z->frames, "traffic_light_faces_index_interval", z->lights,
        frame, &start, &stop));
    return zr_rows(s, z->lights, start, stop);
}

/* ---- replay buffers ---- */

#define ZR_ENDS "meta.episode_ends"

/* Read the ends of episodes: the number of rows up to the end of each. */
static bags_code zr_read_ends(bags_source *s, zr_array *ends) {
    zr_state *z = (zr_state *)s->state;
    const zr_member *member = ends->members;
    uint64_t last = 0;
    if (ends->dims != 1 || ends->count != 1 || member->dims > 0 ||
        !strchr("iu", member->kind))
        return bags_source_fail(
            s, BAGS_ERROR_TYPE, ZR_ENDS ": not an array of one dimension of integers");
    for (uint64_t i = 0; i < ends->shape[0]; i++) {
        const unsigned char *row;
        unsigned char bytes[8];
        FORMAT_TRY(zr_row(s, ends, i, &row));
        bags_swap_bytes(bytes, row, member->size, member->swap);
        bags_value end = bags_import_integer(member->dtype, bytes);
        if (member->kind == 'i' && end.sint < 0)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                ZR_ENDS ": index %" PRIu64 ": negative (%" PRId64 ")", i, end.sint);
        uint64_t stop = member->kind == 'i' ? (uint64_t)end.sint : end.uint;
        if (stop <= last)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                ZR_ENDS ": index %" PRIu64 ": not increasing (%" PRIu64
                        ", the episode starts at %" PRIu64 ")",
                i, stop, last);
        z->stops = (uint64_t *)bags_source_grow(s, z->stops, (size_t)i, sizeof last);
        if (!z->stops)
            return BAGS_ERROR_MEMORY;
        last = z->stops[i] = stop;
    }
    return BAGS_OK;
}

/* Check that the episodes are exactly the rows of an array. */
static bags_code zr_check_ends(bags_source *s, const zr_array *a) {
    const zr_state *z = (const zr_state *)s->state;
    uint64_t count = z->ends->shape[0], i = 0, rows = a->dims ? a->shape[0] : 0;
    if (a->dims == 0)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "data.%s: an array of shape [] has no rows for the episodes of " ZR_ENDS,
            a->name);
    while (i < count && z->stops[i] <= rows)
        i++;
    if (i < count)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            ZR_ENDS ": index %" PRIu64 ": beyond the array data.%s (%" PRIu64
                    ", it has %" PRIu64 " rows)",
            i, a->name, z->stops[i], rows);
    uint64_t last = count ? z->stops[count - 1] : 0;
    if (last == rows)
        return BAGS_OK;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "data.%s: index %" PRIu64 ": rows of no episode (it has %" PRIu64
        " rows, " ZR_ENDS " ends at %" PRIu64 ")",
        a->name, last, rows, last);
}

/* Find the arrays of a replay buffer, if the source is one: it has meta/episode_ends.
 * The fields are the arrays in data/. */
static bags_code zr_replay(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    zr_array *ends = zr_find(z, ZR_ENDS);
    size_t fields = 0;
    if (!ends)
        return BAGS_OK;
    FORMAT_TRY(zr_read_ends(s, ends));
    z->ends = ends;
    for (size_t i = 0; i < z->count; i++) {
        zr_array *a = &z->arrays[i];
        bool is_data = strncmp(a->name, "data.", 5) == 0;
        if (!is_data && strncmp(a->name, "meta.", 5) != 0)
            return bags_source_fail(s, BAGS_ERROR_TYPE,
                "%s: neither in data/ nor in meta/ of a replay buffer (it has "
                "meta/episode_ends); import it by itself",
                a->key);
        if (is_data) {
            a->name += 5;
            FORMAT_TRY(zr_check_ends(s, a));
            fields++;
            continue;
        }
        a->count = 0;
        bags_source_leave_out(
            s, a == ends ? "array of the ends of episodes" : "array", 1, "%s", a->name);
    }
    return fields ? BAGS_OK
                  : bags_source_fail(s, BAGS_ERROR_MISSING,
                        "no array in data/, but meta/episode_ends");
}

static bags_code zr_read_episode(bags_source *s, uint64_t index) {
    const zr_state *z = (const zr_state *)s->state;
    for (size_t i = 0; i < z->count; i++)
        FORMAT_TRY(zr_rows(
            s, &z->arrays[i], index ? z->stops[index - 1] : 0, z->stops[index]));
    return BAGS_OK;
}

/* ---- open ---- */

/* Add a field for each member of an array; see the top of this file. */
static bags_code zr_add_fields(bags_source *s, zr_array *a) {
    zr_state *z = (zr_state *)s->state;
    bool sequence = z->ends || (z->agents && (a == z->agents || a == z->lights));
    bool prefix = *a->name && a != z->frames;
    a->first = s->count;
    for (size_t m = 0; m < a->count; m++) {
        zr_member *member = &a->members[m];
        uint64_t shape[2 * BAGS_MAX_DIMS];
        size_t dims = a->dims > 1 ? a->dims - 1 : 0;
        const char *type = member->kind == 'U' ? "utf8" : "bytes";
        if (!member->dtype && dims > 0)
            return zr_refuse(s, a, "rows of strings", member->name);
        if (dims)
            memcpy(shape, a->shape + 1, dims * sizeof *shape);
        memcpy(shape + dims, member->shape, member->dims * sizeof *shape);
        dims += member->dims;
        if (dims > BAGS_MAX_DIMS)
            return zr_refuse(s, a, "number of dimensions", member->name);
        member->number = bags_import_is_integer(member->dtype) && dims == 0;
        type = member->dtype
                   ? bags_source_number_type(s, member->dtype, dims, shape, sequence)
                   : bags_source_format(s, "%s%s", type, sequence ? "[]" : "");
        const char *name = bags_source_format(s, "%s%s%s", prefix ? a->name : "",
            prefix && *member->name ? "." : "",
            !prefix && !*member->name ? "data" : member->name);
        if (member->unit)
            name = bags_source_unit(s, name, member->unit);
        bags_source_field(s, name, type);
    }
    return BAGS_OK;
}

static int zr_add_key(
    bags_source *s, const char ***keys, size_t *count, const char *key, size_t size) {
    const char *copy = bags_source_text(s, key, size);
    const char **grown =
        copy ? (const char **)bags_source_grow(s, *keys, *count, sizeof copy) : NULL;
    if (!grown)
        return ENOMEM;
    *keys = grown;
    grown[(*count)++] = copy;
    return 0;
}

/* Report attributes as left out. */
static void zr_leave_out(bags_source *s, const char *key, json_object *attributes) {
    const zr_state *z = (const zr_state *)s->state;
    json_object_iter at;
    if (json_object_is_type(attributes, json_type_object))
        json_object_object_foreachC(attributes, at) bags_source_leave_out(
            s, "attribute", 1, "%s@%s", key + strlen(z->root), at.key);
}

static bags_code zr_attributes(bags_source *s, const char *key) {
    json_object *about = NULL;
    const char *name = ((zr_state *)s->state)->found[3] ? "zarr.json" : ".zattrs";
    FORMAT_TRY(zr_read_json(s, key, name, &about));
    zr_leave_out(s, key, *name == '.' ? about : zr_get(about, "attributes"));
    json_object_put(about);
    return BAGS_OK;
}

/* Note a node with a zarr.json: an array, or a group. */
static bags_code zr_add_node(bags_source *s, const char *key, bool *is_array) {
    static const char *const known[] = {
        "zarr_format", "node_type", "attributes", "consolidated_metadata", NULL};
    zr_state *z = (zr_state *)s->state;
    zr_array group;
    json_object *about = NULL;
    memset(&group, 0, sizeof group);
    group.key = key;
    group.about = "zarr.json";
    FORMAT_TRY(zr_read_json(s, key, group.about, &about));
    json_object *version = zr_get(about, "zarr_format");
    const char *type = bags_import_json_text(about, "node_type");
    *is_array = strcmp(type, "array") == 0;
    bags_code code = BAGS_OK;
    if (!json_object_is_type(version, json_type_int) ||
        json_object_get_int64(version) != 3)
        code = zr_refuse(s, &group, "zarr_format",
            version ? json_object_get_string(version) : "none");
    else if (!*is_array && strcmp(type, "group") != 0)
        code = zr_refuse(s, &group, "node_type", *type ? type : "none");
    else if (!*is_array)
        code = zr_check_members(s, &group, about, known);
    json_object_put(about);
    if (!code &&
        (zr_add_key(s, &z->attributes, &z->attributes_count, key, strlen(key)) ||
            (*is_array && zr_add_key(s, &z->keys, &z->key_count, key, strlen(key)))))
        code = BAGS_ERROR_MEMORY;
    if (!z->found[3])
        z->found[3] = bags_source_text(s, key, strlen(key));
    return code;
}

/* ---- files ---- */

/* True if a name in the array's directory is the name of one of its files. */
static bool zr_is_chunk(const zr_array *a, const char *name, char separator) {
    bool prefix = *a->prefix != 0;
    size_t dims = a->dims || prefix ? a->dims : 1;
    if (prefix && *name++ != *a->prefix)
        return false;
    for (size_t d = 0; d < dims; d++) {
        if ((d > 0 || prefix) && *name++ != separator)
            return false;
        size_t digits = strspn(name, "0123456789");
        uint64_t length = a->dims ? a->shape[d] : 1, chunk = a->dims ? a->grid[d] : 1;
        if (digits == 0 || digits > 19 || (digits > 1 && *name == '0') || !length ||
            strtoull(name, NULL, 10) > (length - 1) / chunk)
            return false;
        name += digits;
    }
    return *name == 0;
}

/* Report a file not stored in any field; it may belong to an array or to none. */
static int zr_other_file(bags_source *s, zr_array *a, const char *key) {
    const char *root = ((const zr_state *)s->state)->root;
    size_t size = strlen(root);
    bags_source_leave_out(
        s, "other file", 1, "%s", key + (strncmp(key, root, size) ? 0 : size));
    if (!a)
        return 0;
    bool is_chunk =
        zr_is_chunk(a, key + strlen(a->key), *a->separator == '.' ? '/' : '.');
    if (a->other &&
        (is_chunk != a->other_is_chunk ? a->other_is_chunk : strcmp(a->other, key) < 0))
        return 0;
    a->other_is_chunk = is_chunk;
    a->other = bags_source_text(s, key, strlen(key));
    return a->other ? 0 : ENOMEM;
}

/* A directory of the source, and its array. */
typedef struct zr_directory {
    bags_source *s;
    zr_array *array;
    const char *key;
    int depth;
} zr_directory;

/* Find the files of an array in a directory, and below. For chunks, only names are
 * checked, since there may be millions. */
static int zr_walk_array(void *user, const char *name) {
    const zr_directory *in = (const zr_directory *)user;
    const bags_io *io = bags_io_local();
    bags_source *s = in->s;
    zr_state *z = (zr_state *)s->state;
    bags_path_kind kind = BAGS_PATH_NONE;
    zr_directory below = {s, in->array, NULL, in->depth + 1};
    size_t size = strlen(in->key), more = strlen(name);
    if (name[0] == '.' || (in->depth == 0 && strcmp(name, in->array->about) == 0))
        return 0;
    if (bags_source_reserve(s, &z->path, size + more))
        return ENOMEM;
    char *key = (char *)memcpy(z->path->data, in->key, size);
    memcpy(key + size, name, more + 1);
    if (zr_is_chunk(in->array, key + strlen(in->array->key), *in->array->separator)) {
        in->array->chunk_count++;
        return 0;
    }
    below.key = bags_source_format(s, "%s/", key);
    const char *path =
        below.key ? bags_source_format(s, "%s/%s", s->path, below.key) : NULL;
    int error = path ? io->kind(io->user, path, &kind) : ENOMEM;
    if (error || kind != BAGS_PATH_DIRECTORY)
        return error ? error : zr_other_file(s, in->array, key);
    return below.depth > BAGS_MAX_DIMS
               ? ELOOP
               : io->list(io->user, path, zr_walk_array, &below);
}

/* Find the files of the arrays in a .zip; both lists are sorted. */
static int zr_walk_members(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    size_t next = 0;
    int error = 0;
    for (size_t i = 0; !error && i < z->entry_count; i++) {
        const char *name = z->entries[i].name;
        size_t size = strlen(name);
        if (name[0] == '.' || strstr(name, "/.") || size == 0 || name[size - 1] == '/')
            continue;
        while (next < z->count && strcmp(z->arrays[next].key, name) <= 0)
            next++;
        zr_array *a = next ? &z->arrays[next - 1] : NULL;
        if (a && strncmp(name, a->key, strlen(a->key)) != 0)
            a = NULL;
        if (z->found[3] && strcmp(bags_import_base(name), "zarr.json") == 0)
            continue;
        if (a && zr_is_chunk(a, name + strlen(a->key), *a->separator))
            a->chunk_count++;
        else
            error = zr_other_file(s, a, name);
    }
    return error;
}

/* Find the files of the arrays. An array without chunks consists of fill values, but if
 * it has files, they may be chunks under unexpected names. */
static bags_code zr_check_files(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    const bags_io *io = bags_io_local();
    int error = z->zip ? zr_walk_members(s) : 0;
    for (size_t i = 0; !error && !z->zip && i < z->count; i++) {
        zr_directory top = {s, &z->arrays[i], z->arrays[i].key, 0};
        const char *path = bags_source_format(s, "%s/%s", s->path, top.key);
        error = path ? io->list(io->user, path, zr_walk_array, &top) : ENOMEM;
    }
    if (error)
        return error == ENOMEM
                   ? bags_source_no_memory(s)
                   : bags_source_fail(s, BAGS_ERROR_IO, "%s", strerror(error));
    for (size_t i = 0; i < z->count; i++) {
        const zr_array *a = &z->arrays[i];
        const uint64_t zeros[BAGS_MAX_DIMS] = {0};
        if (a->chunk_count || !a->other || (a->dims && a->shape[0] == 0))
            continue;
        const char *first = zr_key(s, a, zeros);
        if (!first)
            return BAGS_ERROR_MEMORY;
        const char *other = *a->separator == '.' ? "/" : ".";
        const char *remedy = "";
        if (a->other_is_chunk && a->version == 2)
            remedy = bags_source_format(
                s, "; set \"dimension_separator\": \"%s\" in %s.zarray", other, a->key);
        if (a->other_is_chunk && a->version == 3)
            remedy =
                bags_source_format(s, "; its chunk_key_encoding has another separator");
        return bags_source_fail(s, BAGS_ERROR_MISSING,
            "no chunk has a name that %s%s states (found %s, expected %s)%s", a->key,
            a->about, a->other, first, remedy ? remedy : "");
    }
    return BAGS_OK;
}

/* The text of a shape: "10, 3". NULL if out of memory. */
static const char *zr_shape_text(bags_source *s, const zr_array *a) {
    const char *text = "";
    for (size_t d = 0; text && d < a->dims; d++)
        text = bags_source_format(s, "%s%s%" PRIu64, text, d ? ", " : "", a->shape[d]);
    return text;
}

/* Fail if the source consists almost only of fill values: a few bytes of metadata would
 * become any number of rows. */
static bags_code zr_check_fill(bags_source *s) {
    const zr_state *z = (const zr_state *)s->state;
    const zr_array *worst = NULL;
    double held = 0, filled = 0, most = 0, files = 0;
    for (size_t i = 0; i < z->count; i++) {
        const zr_array *a = &z->arrays[i];
        double file = (double)a->item, grid = 1, all = (double)a->item;
        for (size_t d = 0; d < a->dims; d++) {
            file *= (double)a->grid[d];
            all *= (double)a->shape[d];
            grid *= a->shape[d] ? (double)((a->shape[d] - 1) / a->grid[d] + 1) : 0;
        }
        double fill = (grid - (double)a->chunk_count) * file;
        double stored = (double)a->chunk_count * file;
        held += stored < all ? stored : all;
        filled += fill > 0 ? fill : 0;
        if (fill > most) {
            most = fill;
            files = grid;
            worst = a;
        }
    }
    if (!worst || filled <= (double)ZR_FILL_LEAST || filled <= ZR_FILL * held)
        return BAGS_OK;
    const char *shape = zr_shape_text(s, worst);
    return bags_source_fail(s, BAGS_ERROR_LIMIT,
        "array \"%s\" of shape [%s]: %" PRIu64
        " of %.0f chunks exist; the others would "
        "become %.3g bytes of fill values (maximum 1 GiB, or %d times the stored "
        "chunks); "
        "resize the array to the rows that have data",
        *worst->name ? worst->name : "data", shape ? shape : "", worst->chunk_count,
        files, most, ZR_FILL);
}

/* Find the arrays in a directory, and below. */
static int zr_walk(void *user, const char *name) {
    const zr_directory *in = (const zr_directory *)user;
    const bags_io *io = bags_io_local();
    bags_source *s = in->s;
    bags_path_kind kind = BAGS_PATH_NONE;
    zr_directory below = {s, NULL, NULL, in->depth + 1};
    below.key = *name ? bags_source_format(s, "%s%s/", in->key, name) : "";
    const char *path =
        below.key ? bags_source_format(s, "%s/%s", s->path, below.key) : NULL;
    if (!path)
        return ENOMEM;
    zr_state *z = (zr_state *)s->state;
    int error = name[0] == '.' ? 0 : io->kind(io->user, path, &kind);
    if (!error && kind == BAGS_PATH_NONE && name[0] != '.' &&
        strcmp(name, "zarr.json") != 0)
        bags_source_leave_out(s, "other file", 1, "%s%s", in->key, name);
    if (error || kind != BAGS_PATH_DIRECTORY)
        return error;
    bool is_array = bags_import_kind(path, ".zarray") != BAGS_PATH_NONE;
    if (!z->found[2] &&
        (is_array || bags_import_kind(path, ".zgroup") != BAGS_PATH_NONE))
        z->found[2] = below.key;
    if (bags_import_kind(path, ".zattrs") == BAGS_PATH_FILE)
        error = zr_add_key(
            s, &z->attributes, &z->attributes_count, below.key, strlen(below.key));
    if (!error && is_array)
        error = zr_add_key(s, &z->keys, &z->key_count, below.key, strlen(below.key));
    if (!error && bags_import_kind(path, "zarr.json") != BAGS_PATH_NONE) {
        bool is_new = false;
        z->failed = zr_add_node(s, below.key, &is_new);
        error = z->failed ? EIO : 0;
        is_array = is_array || is_new;
    }
    if (error || is_array)
        return error;
    return below.depth > ZR_DEPTH ? ELOOP : io->list(io->user, path, zr_walk, &below);
}

/* A .zip may contain the directory itself, so its root is the shortest key. */
static int zr_walk_zip(bags_source *s) {
    static const char *const names[] = {".zarray", ".zgroup", ".zattrs", "zarr.json"};
    zr_state *z = (zr_state *)s->state;
    size_t root = SIZE_MAX;
    for (size_t i = 0; i < z->entry_count; i++) {
        const char *name = z->entries[i].name, *base = bags_import_base(name);
        size_t size = (size_t)(base - name), which = 0;
        while (which < 4 && strcmp(base, names[which]) != 0)
            which++;
        if (which == 4)
            continue;
        const char *key = bags_source_text(s, name, size);
        if (!key)
            return ENOMEM;
        if (which == 2) {
            if (zr_add_key(s, &z->attributes, &z->attributes_count, name, size))
                return ENOMEM;
            continue;
        }
        if (size < root) {
            root = size;
            z->root = key;
        }
        if (which < 2 && !z->found[2])
            z->found[2] = key;
        if (which == 0 && zr_add_key(s, &z->keys, &z->key_count, name, size))
            return ENOMEM;
        bool ignored;
        z->failed = which == 3 ? zr_add_node(s, key, &ignored) : BAGS_OK;
        if (z->failed)
            return EIO;
    }
    return 0;
}

/* Find the source's arrays, ordered by name, and read their metadata. */
static bags_code zr_open_arrays(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    bags_path_kind kind = bags_import_kind(s->path, NULL);
    zr_directory top = {s, NULL, "", 0};
    if (kind == BAGS_PATH_NONE)
        return bags_source_fail(
            s, BAGS_ERROR_MISSING, "cannot open: No such file or directory");
    if (kind == BAGS_PATH_FILE) {
        zip_error_t why;
        int error = 0;
        z->zip = zip_open(s->path, ZIP_RDONLY | ZIP_CHECKCONS, &error);
        if (error == ZIP_ER_EXISTS) /* two arrays with the same name */
            z->zip = zip_open(s->path, ZIP_RDONLY, &error);
        zip_error_init_with_code(&why, error);
        if (!z->zip)
            bags_source_fail(s, BAGS_ERROR_CORRUPT, "cannot open as .zip: %s",
                zip_error_strerror(&why));
        zip_error_fini(&why);
        if (!z->zip)
            return BAGS_ERROR_CORRUPT;
    }
    bags_code code = z->zip ? zr_list_zip(s) : BAGS_OK;
    if (code)
        return code;
    int error = z->zip ? zr_walk_zip(s) : zr_walk(&top, "");
    if (error == ENOMEM)
        return bags_source_no_memory(s);
    if (z->failed)
        return z->failed;
    if (z->found[2] && z->found[3])
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "contains both Zarr 2 (\"%s\") and Zarr 3 (\"%s\"); remove the metadata of "
            "one version",
            z->found[2], z->found[3]);
    if (error || z->key_count == 0)
        return bags_source_fail(s, error ? BAGS_ERROR_IO : BAGS_ERROR_MISSING, "%s",
            error ? strerror(error) : "no Zarr array in it");
    qsort(z->keys, z->key_count, sizeof *z->keys, format_compare_texts);
    z->arrays = (zr_array *)bags_source_alloc(s, z->key_count, sizeof *z->arrays);
    code = z->arrays ? BAGS_OK : BAGS_ERROR_MEMORY;
    for (; !code && z->count < z->key_count; z->count++)
        code = zr_open_array(s, &z->arrays[z->count], z->keys[z->count]);
    if (!code)
        code = zr_check_files(s);
    if (!code)
        code = zr_check_fill(s);
    for (size_t i = 0; !code && i < z->attributes_count; i++)
        code = zr_attributes(s, z->attributes[i]);
    return code;
}

static void zr_close(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    if (z->zip)
        zip_discard(z->zip);
}

static bags_code zr_open(bags_source *s) {
    zr_state *z = (zr_state *)s->state;
    z->root = "";
    FORMAT_TRY(zr_open_arrays(s));
    FORMAT_TRY(zr_l5kit(s));
    FORMAT_TRY(z->scenes ? BAGS_OK : zr_replay(s));
    const zr_array *first = z->frames;
    for (size_t i = 0; !first && i < z->count; i++)
        first = z->arrays[i].dims ? &z->arrays[i] : NULL;
    s->length = z->ends ? z->ends->shape[0] : first ? first->shape[0] : 1;
    for (size_t i = 0; i < z->count; i++) {
        zr_array *a = &z->arrays[i];
        if (!z->scenes && !z->ends && a->dims && a->shape[0] != s->length)
            return bags_source_fail(s, BAGS_ERROR_TYPE,
                "the arrays differ in length (%s %" PRIu64 ", %s %" PRIu64
                "); import a group or an array of it",
                first->name, s->length, a->name, a->shape[0]);
        FORMAT_TRY(zr_add_fields(s, a));
    }
    if (z->scenes)
        bags_source_field(s, "scene_index", "i64");
    return z->scenes ? zr_unused_rows(s) : BAGS_OK;
}

static bags_code zr_read_row(bags_source *s, uint64_t index) {
    zr_state *z = (zr_state *)s->state;
    if (s->ended)
        return BAGS_OK;
    if (z->scenes)
        return zr_read_frame(s, index);
    if (z->ends)
        return zr_read_episode(s, index);
    for (size_t i = 0; i < z->count; i++) {
        uint64_t row = z->arrays[i].dims ? index : 0;
        FORMAT_TRY(zr_rows(s, &z->arrays[i], row, row + 1));
    }
    return BAGS_OK;
}

const bags_importer bags_import_zarr = {
    "zarr", bags_import_is_zarr, sizeof(zr_state), zr_open, zr_read_row, zr_close};
