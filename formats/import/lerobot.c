/*
 * lerobot.c - imports LeRobot datasets, version 2.1 and 3.0: a directory with
 * meta/info.json. With json-c, and DuckDB's library for Parquet (see duckdb.c).
 *
 *     meta/info.json   features, frames per second, templates of paths
 *     v3.0             meta/tasks.parquet, meta/episodes/CHUNK/FILE.parquet: a row per
 *                      episode, with the files of its rows and, per camera, the file and
 *                      the times of its frames. A file has many episodes
 *     v2.1             meta/tasks.jsonl, meta/episodes.jsonl, meta/episodes_stats.jsonl; a
 *                      Parquet file and, per camera, an MP4 file per episode
 *
 * A datapoint is an episode:
 *
 *     episode_index    i64
 *     a feature        a sequence of a value per frame; numbers of shape [1] that are no
 *                      lists in the files: i64[], u64[], array(DTYPE)[]; of other shapes
 *                      array(DTYPE,SHAPE)[]; text: utf8[]; images: jpeg[], png[], bytes[]
 *     a camera         mp4: the file, or the packets of the episode (mp4_cut.h)
 *     tasks            utf8[]: the texts of its task_index, in the order of the frames
 *     stats            utf8: its statistics as JSON, if the source has them
 *
 * Metadata: `lerobot`, with info.json, stats.json and the numbers of tasks by text; and the
 * members of the object `bags` of info.json, in which the exporter writes them.
 *
 * Open checks for every episode: its number of rows, their indexes and files, that its videos
 * exist, that no other episode has the same part of them, and that the parts are in the order
 * of the episodes. Read checks each row, and that each frame of a video is at the time of its
 * row, within half a frame. Both check the rate.
 */
#include "detect.h"
#include "json.h"
#include "mp4_cut.h"
#include "sql.h"
#include "text.h"
#include "try.h"

#include <stdio.h>

#define LR_DIMS 2

/* A feature that is in Parquet files. */
typedef struct lr_feature {
    const char *name, *dtype;
    const char *expression; /* in SQL */
    bags_dtype number;      /* of numbers; otherwise text or an image */
    bool is_image;
    bool is_list; /* columns of numbers are arrays of one element (see the exporter) */
    size_t dims;  /* 0: numbers, not lists */
    uint64_t shape[LR_DIMS];
    uint64_t size; /* elements of a value */
    size_t field;
} lr_feature;

typedef struct lr_camera {
    const char *name;
    size_t field;
    uint64_t sides[2]; /* of frames, the shorter one first; 0: not known */
    cut_file cut;
} lr_camera;

/* The frames of an episode in a file of a camera. */
typedef struct lr_part {
    const char *path;
    int64_t chunk, file;
    double from, to; /* in seconds; v2.1: all of the file */
    int64_t episode;
    uint64_t length; /* of the episode */
} lr_part;

typedef struct lr_episode {
    int64_t number, from; /* from: the index of its first row, if known, or -1 */
    uint64_t length, rows;
    const char *path;    /* of its rows */
    int64_t chunk, file; /* the numbers in this path; version 3 */
    const char *stats;
    lr_part *parts; /* per camera */
} lr_episode;

typedef struct lr_task {
    int64_t number;
    const char *text;
} lr_task;

/* The result of a query. */
typedef struct lr_table {
    bags_source *source;
    const bags_entry *row; /* NULL: at the end */
    uint64_t next;
    const char *query, *file;
} lr_table;

typedef struct lr_state {
    json_object *info;
    const char *root; /* the path of the source, without a trailing / */
    bool is_v3, has_stats;
    double rate;
    const char *data_path, *video_path;
    lr_feature *features;
    size_t feature_count;
    lr_camera *cameras;
    size_t camera_count;
    lr_episode *episodes;
    size_t episode_count;
    lr_task *tasks;
    size_t task_count;
    size_t tasks_field, stats_field;
    lr_table table;  /* of open */
    lr_table frames; /* of the file of rows that was read last */
} lr_state;

/* ---- queries ---- */

static void lr_close_table(lr_table *table) {
    bags_source_close(table->source);
    memset(table, 0, sizeof *table);
}

/* Fail with the error of a query in *s->err, with its file in place of the query. */
static bags_code lr_fail_query(bags_source *s, const lr_table *table) {
    bags_error failed = *s->err;
    const char *query = table->source ? table->source->path : table->query;
    size_t size = strlen(query);
    size = size < 400 ? size : 400; /* see sql_open in duckdb.c */
    bool has_query = strncmp(failed.message, query, size) == 0;
    s->where = table->file;
    return bags_source_fail(s, failed.code, "%s",
        has_query ? failed.message + size + strspn(failed.message + size, ": ")
                  : failed.message);
}

/* Read the next row. */
static bags_code lr_next(bags_source *s, lr_table *table) {
    if (bags_source_read(table->source, table->next++, &table->row, s->err))
        return lr_fail_query(s, table);
    return BAGS_OK;
}

/* Start a query of `file`, for messages, and read its first row. */
static bags_code lr_query(
    bags_source *s, lr_table *table, const char *file, const char *query) {
    bags_source_options options;
    memset(&options, 0, sizeof options);
    options.allocator = &s->allocator;
    lr_close_table(table);
    table->file = file;
    table->query = query;
    if (!query || !file)
        return BAGS_ERROR_MEMORY;
    table->source = bags_source_open(&bags_import_sql, query, &options, s->err);
    return table->source ? lr_next(s, table) : lr_fail_query(s, table);
}

/* A value of the row; NULL if it is NULL. */
static const bags_value *lr_value(const lr_table *table, size_t column) {
    return table->row[column].count == 1 ? table->row[column].values : NULL;
}

static bool lr_int(const lr_table *table, size_t column, int64_t *out) {
    const bags_value *value = lr_value(table, column);
    *out = value ? value->sint : 0;
    return value != NULL;
}

static bool lr_real(const lr_table *table, size_t column, double *out) {
    const bags_value *value = lr_value(table, column);
    if (value)
        memcpy(out, value->data, sizeof *out);
    return value != NULL;
}

static const char *lr_text(bags_source *s, const lr_table *table, size_t column) {
    const bags_value *value = lr_value(table, column);
    return value ? bags_source_text(s, value->data, value->size) : NULL;
}

/* A pattern of files below the source, in quotes. */
static const char *lr_glob(bags_source *s, const char *pattern) {
    const char *path = bags_import_no_pattern(s, ((lr_state *)s->state)->root);
    path = path ? bags_source_format(s, "%s/%s", path, pattern) : NULL;
    return path ? bags_import_quote(s, path, '\'') : NULL;
}

/* "name" AS cN of another type. */
static const char *lr_cast(bags_source *s, const char *name, const char *type) {
    const char *quoted = name ? bags_import_quote(s, name, '"') : NULL;
    return quoted ? bags_source_format(s, "CAST(%s AS %s)", quoted, type) : NULL;
}

/* A query that selects `columns`, as c0, c1, and so on, from files. */
static const char *lr_select(bags_source *s, const char *const *columns, size_t count,
    const char *files, const char *rest) {
    size_t size = 0;
    for (size_t i = 0; i < count; i++) {
        if (!columns[i])
            return NULL;
        size += strlen(columns[i]) + 30;
    }
    char *list = (char *)bags_source_alloc(s, size + 1, 1);
    if (!list || !files)
        return NULL;
    for (size_t i = 0, used = 0; i < count; i++)
        used += (size_t)snprintf(list + used, size + 1 - used, "%s%s AS c%llu",
            i ? ", " : "", columns[i], (unsigned long long)i);
    return bags_source_format(s,
        "SELECT %s FROM read_parquet(%s, hive_partitioning=false) %s", list, files,
        rest);
}

/* ---- info.json ---- */

static bags_code lr_fail(bags_source *s, const char *file, const char *what) {
    s->where = file;
    return bags_source_fail(s, BAGS_ERROR_CORRUPT, "%s", what);
}

static const char *lr_below(bags_source *s, const char *name) {
    return bags_source_format(s, "%s/%s", ((lr_state *)s->state)->root, name);
}

/* Element i of a shape, or -1 if it is not an integer. */
static int64_t lr_side(json_object *shape, size_t i) {
    json_object *side = json_object_array_get_idx(shape, i);
    return json_object_is_type(side, json_type_int) ? json_object_get_int64(side) : -1;
}

/* The shape of a feature. False if it is not supported. */
static bool lr_shape(lr_feature *f, json_object *json) {
    json_object *shape = bags_import_member(json, "shape", json_type_array);
    size_t dims = shape ? json_object_array_length(shape) : 0;
    f->size = 1;
    if (dims == 0 || dims > LR_DIMS)
        return false;
    for (size_t i = 0; i < dims; i++) {
        int64_t length = lr_side(shape, i);
        if (length < 1 || length > INT32_MAX / (int64_t)f->size)
            return false;
        f->shape[f->dims++] = (uint64_t)length;
        f->size *= (uint64_t)length;
    }
    return true;
}

/* Get the sides of frames from a shape such as [480, 640, 3] or [3, 480, 640]. Names of
 * dimensions do not count: they are often in another order. */
static void lr_read_sides(lr_camera *camera, json_object *json) {
    json_object *shape = bags_import_member(json, "shape", json_type_array);
    int64_t sides[3];
    if (!shape || json_object_array_length(shape) != 3)
        return;
    for (size_t i = 0; i < 3; i++)
        sides[i] = lr_side(shape, i);
    const int64_t *side = sides[2] > 4 ? sides + 1 : sides;
    camera->sides[0] = (uint64_t)(side[0] < side[1] ? side[0] : side[1]);
    camera->sides[1] = (uint64_t)(side[0] < side[1] ? side[1] : side[0]);
}

static bags_code lr_add_feature(bags_source *s, const char *name, json_object *json) {
    lr_state *l = (lr_state *)s->state;
    lr_feature f;
    memset(&f, 0, sizeof f);
    f.name = bags_source_text(s, name, strlen(name));
    const char *dtype = bags_import_json_text(json, "dtype");
    f.dtype = bags_source_text(s, dtype, strlen(dtype));
    if (!f.name || !f.dtype)
        return BAGS_ERROR_MEMORY;
    if (strcmp(dtype, "video") == 0) {
        l->cameras = (lr_camera *)bags_source_grow(
            s, l->cameras, l->camera_count, sizeof *l->cameras);
        if (!l->cameras)
            return BAGS_ERROR_MEMORY;
        lr_read_sides(&l->cameras[l->camera_count], json);
        l->cameras[l->camera_count++].name = f.name;
        return BAGS_OK;
    }
    f.is_image = strcmp(dtype, "image") == 0;
    json_object *is_list = bags_import_member(json, "is_list", json_type_boolean);
    f.is_list = is_list && json_object_get_boolean(is_list);
    if (!f.is_image && strcmp(dtype, "string") != 0) {
        f.number = bags_dtype_parse(dtype, strlen(dtype), NULL);
        if (!f.number || f.number > BAGS_DTYPE_FLOAT64 ||
            f.number == BAGS_DTYPE_FLOAT16 || !lr_shape(&f, json))
            return bags_source_fail(s, BAGS_ERROR_TYPE,
                "feature %.200s: dtype \"%.50s\" with this shape is not supported",
                name, dtype);
    }
    l->features =
        (lr_feature *)bags_source_grow(s, l->features, l->feature_count, sizeof f);
    if (!l->features)
        return BAGS_ERROR_MEMORY;
    l->features[l->feature_count++] = f;
    return BAGS_OK;
}

static bags_code lr_read_info(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    s->where = lr_below(s, "meta/info.json");
    if (!s->where)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(bags_source_json(s, s->where, &l->info));
    const char *version = bags_import_json_text(l->info, "codebase_version");
    l->is_v3 = strncmp(version, "v3.", 3) == 0;
    if (!l->is_v3 && strcmp(version, "v2.1") != 0 && strcmp(version, "v2.0") != 0)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "codebase_version \"%.50s\" is not supported (v2.0, v2.1, v3.x)", version);
    json_object *rate = NULL;
    json_object_object_get_ex(l->info, "fps", &rate);
    l->rate = json_object_get_double(rate);
    if (!(l->rate > 0 && l->rate <= 1e6))
        return lr_fail(s, s->where, "fps is missing, or not a number above 0");
    const char *data = bags_import_json_text(l->info, "data_path");
    const char *video = bags_import_json_text(l->info, "video_path");
    l->data_path = bags_source_text(s, data, strlen(data));
    l->video_path = bags_source_text(s, video, strlen(video));
    json_object *features = bags_import_member(l->info, "features", json_type_object);
    if (!features)
        return lr_fail(s, s->where, "no features");
    static const char *const needed[] = {
        "episode_index", "frame_index", "index", "timestamp", "task_index"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!bags_import_member(features, needed[i], json_type_object))
            return bags_source_fail(s, BAGS_ERROR_CORRUPT, "no feature %s", needed[i]);
    json_object_object_foreach(features, name, feature) {
        if (strcmp(name, "episode_index") != 0)
            FORMAT_TRY(lr_add_feature(s, name, feature));
    }
    if (!l->data_path || !l->video_path)
        return BAGS_ERROR_MEMORY;
    return l->camera_count < 2 || strstr(l->video_path, "{video_key")
               ? BAGS_OK
               : lr_fail(s, s->where,
                     "video_path has no {video_key}: all cameras have the same files");
}

/* A number of info.json must be this one, if it has it. */
static bags_code lr_check_total(bags_source *s, const char *name, uint64_t found) {
    lr_state *l = (lr_state *)s->state;
    json_object *json = bags_import_member(l->info, name, json_type_int);
    if (!json ||
        (json_object_get_int64(json) >= 0 && json_object_get_uint64(json) == found))
        return BAGS_OK;
    s->where = lr_below(s, "meta/info.json");
    return bags_source_fail(s, BAGS_ERROR_CORRUPT,
        "%s is %s, the metadata of episodes has %" PRIu64
        "; if the recorder did not finish, its last episodes are missing (finalize())",
        name, json_object_get_string(json), found);
}

/* The numbers in a template of a path. */
typedef struct lr_names {
    int64_t chunk, file, episode;
    const char *camera;
} lr_names;

/* The path that a template such as {chunk_index:03d} makes, below the source. */
static bags_code lr_path(bags_source *s, const char *template_text,
    const lr_names *names, const char **out) {
    size_t size = strlen(template_text) * 24 + 1, used = 0;
    if (names->camera)
        size += strlen(template_text) / 11 * strlen(names->camera);
    char *path = (char *)bags_source_alloc(s, size, 1);
    bool good = path && template_text[0] && template_text[0] != '/';
    for (const char *at = template_text; good && *at;) {
        if (*at != '{') {
            path[used++] = *at++;
            continue;
        }
        size_t inside = strcspn(++at, "}"), name = strcspn(at, ":}");
        int width = 0;
        good = at[inside] == '}' &&
               (name == inside || (sscanf(at + name, ":%dd}", &width) == 1 &&
                                      width >= 0 && width < 20));
        static const char *const known[] = {
            "chunk_index", "episode_chunk", "file_index", "episode_index", "video_key"};
        size_t k = 0;
        while (k < 5 && (strlen(known[k]) != name || memcmp(known[k], at, name) != 0))
            k++;
        int64_t number = k < 2 ? names->chunk : k == 2 ? names->file : names->episode;
        if (!good || k == 5 || (k == 4 && !names->camera) || (k < 4 && number < 0))
            good = false;
        else if (k == 4)
            used += (size_t)snprintf(path + used, size - used, "%s", names->camera);
        else
            used += (size_t)snprintf(
                path + used, size - used, "%0*lld", width, (long long)number);
        at += inside + (at[inside] == '}');
    }
    if (!path)
        return BAGS_ERROR_MEMORY;
    good = good && !strstr(path, "../") && !strchr(path, '\\');
    if (!good) {
        s->where = lr_below(s, "meta/info.json");
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "the template of paths \"%.200s\" is not supported", template_text);
    }
    *out = lr_below(s, path);
    return *out ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* ---- episodes ---- */

static bags_code lr_fail_episode(bags_source *s, bags_code code, int64_t episode,
    const char *file, const char *what) {
    s->where = file;
    bags_fail(s->err, code, "episode %lld: %s", (long long)episode, what);
    return bags_prefix(s->err, code, "%s: ", file);
}

static lr_episode *lr_new_episode(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    l->episodes = (lr_episode *)bags_source_grow(
        s, l->episodes, l->episode_count, sizeof *l->episodes);
    if (!l->episodes)
        return NULL;
    lr_episode *e = &l->episodes[l->episode_count];
    e->from = -1;
    e->parts = (lr_part *)bags_source_alloc(s, l->camera_count + 1, sizeof *e->parts);
    if (!e->parts)
        return NULL;
    l->episode_count++;
    return e;
}

/* The columns stats/FEATURE/NAME as an expression that makes JSON; NULL in *out if there are
 * none. */
static bags_code lr_stats_column(bags_source *s, const char *files, const char **out) {
    lr_state *l = (lr_state *)s->state;
    const char *sql = NULL, *last = "";
    *out = NULL;
    FORMAT_TRY(lr_query(s, &l->table, lr_below(s, "meta/episodes"),
        bags_source_format(s,
            "SELECT column_name AS c FROM (DESCRIBE SELECT * FROM read_parquet(%s, "
            "hive_partitioning=false)) WHERE column_name LIKE 'stats/%%/%%' ORDER BY "
            "column_name",
            files)));
    for (; l->table.row; last = sql ? last : "") {
        const char *column = lr_text(s, &l->table, 0);
        const char *slash = column ? strrchr(column, '/') : NULL;
        if (!slash)
            return BAGS_ERROR_MEMORY;
        const char *feature =
            bags_source_text(s, column + 6, (size_t)(slash - column) - 6);
        const char *quoted = bags_import_quote(s, column, '"');
        json_object *names[2] = {json_object_new_string(feature ? feature : ""),
            json_object_new_string(slash + 1)};
        const char *keys[2];
        for (int i = 0; i < 2; i++) {
            const char *key = bags_source_print_json(s, names[i]);
            keys[i] = key ? bags_import_quote(s, key, '\'') : NULL;
            json_object_put(names[i]);
        }
        if (!feature || !quoted || !keys[0] || !keys[1])
            return BAGS_ERROR_MEMORY;
        bool same = sql && strcmp(last, feature) == 0;
        sql = bags_source_format(s,
            "%s%s%s%s || %s || ':' || coalesce(replace(replace(replace(CAST(%s AS "
            "VARCHAR), '-inf', '\"-Infinity\"'), 'inf', '\"Infinity\"'), 'nan', "
            "'\"NaN\"'), 'null')",
            sql ? sql : "'{' || ",
            same  ? " || ','"
            : sql ? " || '},' || "
                  : "",
            same ? "" : keys[0], same ? "" : " || ':{'", keys[1], quoted);
        last = feature;
        if (!sql)
            return BAGS_ERROR_MEMORY;
        FORMAT_TRY(lr_next(s, &l->table));
    }
    l->has_stats = sql != NULL;
    *out = sql ? bags_source_format(s, "%s || '}}'", sql) : "CAST(NULL AS VARCHAR)";
    return *out ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Set the parts of the cameras from a row of meta/episodes, from this column on. */
static bags_code lr_read_parts(bags_source *s, lr_episode *e, size_t column) {
    lr_state *l = (lr_state *)s->state;
    for (size_t k = 0; k < l->camera_count; k++, column += 4) {
        lr_names names = {0, 0, e->number, l->cameras[k].name};
        lr_part *part = &e->parts[k];
        if (!lr_int(&l->table, column, &names.chunk) ||
            !lr_int(&l->table, column + 1, &names.file) ||
            !lr_real(&l->table, column + 2, &part->from) ||
            !lr_real(&l->table, column + 3, &part->to))
            return lr_fail_episode(s, BAGS_ERROR_CORRUPT, e->number, l->table.file,
                bags_source_format(s,
                    "camera %.200s: NULL in place of its file or its times",
                    l->cameras[k].name));
        part->chunk = names.chunk;
        part->file = names.file;
        FORMAT_TRY(lr_path(s, l->video_path, &names, &part->path));
    }
    return BAGS_OK;
}

/* meta/episodes of version 3. */
static bags_code lr_read_episodes_3(bags_source *s) {
    static const char *const numbers[] = {"episode_index", "length", "data/chunk_index",
        "data/file_index", "dataset_from_index", "dataset_to_index"};
    lr_state *l = (lr_state *)s->state;
    size_t count = 0;
    const char **columns =
        (const char **)bags_source_alloc(s, 7 + 4 * l->camera_count, sizeof *columns);
    const char *files = lr_glob(s, "meta/episodes/*/*.parquet"), *stats = NULL;
    if (!columns || !files)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(lr_stats_column(s, files, &stats));
    for (size_t i = 0; i < 6; i++)
        columns[count++] = lr_cast(s, numbers[i], "BIGINT");
    for (size_t k = 0; k < 4 * l->camera_count; k++) {
        static const char *const parts[] = {
            "chunk_index", "file_index", "from_timestamp", "to_timestamp"};
        const char *name =
            bags_source_format(s, "videos/%s/%s", l->cameras[k / 4].name, parts[k % 4]);
        columns[count++] = lr_cast(s, name, k % 4 < 2 ? "BIGINT" : "DOUBLE");
    }
    columns[count++] = stats;
    FORMAT_TRY(lr_query(s, &l->table, lr_below(s, "meta/episodes"),
        lr_select(s, columns, count, files, "ORDER BY 1")));
    while (l->table.row) {
        lr_episode *e = lr_new_episode(s);
        int64_t length = -1, to = 0;
        lr_names names = {0, 0, 0, NULL};
        if (!e)
            return BAGS_ERROR_MEMORY;
        bool good = lr_int(&l->table, 0, &e->number) && lr_int(&l->table, 1, &length) &&
                    length > 0 && lr_int(&l->table, 2, &names.chunk) &&
                    lr_int(&l->table, 3, &names.file) &&
                    lr_int(&l->table, 4, &e->from) && lr_int(&l->table, 5, &to);
        if (!good || e->from < 0 || to < e->from || to - e->from != length)
            return lr_fail_episode(s, BAGS_ERROR_CORRUPT, e->number, l->table.file,
                bags_source_format(s,
                    "length %lld, dataset_from_index %lld and dataset_to_index %lld "
                    "contradict each other, or a value is NULL",
                    (long long)length, (long long)e->from, (long long)to));
        e->length = (uint64_t)length;
        e->chunk = names.chunk;
        e->file = names.file;
        FORMAT_TRY(lr_path(s, l->data_path, &names, &e->path));
        FORMAT_TRY(lr_read_parts(s, e, 6));
        e->stats = lr_text(s, &l->table, count - 1);
        FORMAT_TRY(lr_next(s, &l->table));
    }
    return BAGS_OK;
}

/* Call `add` with the object of each line of a file below the source. */
static bags_code lr_read_lines(bags_source *s, const char *name,
    bags_code (*add)(bags_source *s, json_object *line)) {
    bags_view file, line;
    s->where = lr_below(s, name);
    FORMAT_TRY(s->where ? bags_source_load(s, s->where, INT32_MAX - 1, &file)
                        : BAGS_ERROR_MEMORY);
    for (uint64_t number = 1; file.size > 0; number++) {
        const void *end = memchr(file.data, '\n', file.size);
        line.size = end ? (size_t)((const unsigned char *)end - file.data) : file.size;
        const char *text = bags_source_text(s, file.data, line.size);
        const char *where =
            bags_source_format(s, "%s: line %" PRIu64, s->where, number);
        if (!text || !where)
            return BAGS_ERROR_MEMORY;
        line.data = (const unsigned char *)text;
        file.data += line.size + (end ? 1 : 0);
        file.size -= line.size + (end ? 1 : 0);
        if (text[strspn(text, " \t\r")] == 0)
            continue;
        json_object *json = NULL;
        FORMAT_TRY(bags_source_parse_json(s, where, line, &json));
        bags_code code = add(s, json);
        json_object_put(json);
        FORMAT_TRY(code);
    }
    return BAGS_OK;
}

/* A member that is an integer from 0. */
static bool lr_index(json_object *line, const char *name, int64_t *out) {
    json_object *json = bags_import_member(line, name, json_type_int);
    *out = json ? json_object_get_int64(json) : -1;
    return *out >= 0;
}

static bags_code lr_add_episode(bags_source *s, json_object *line) {
    lr_state *l = (lr_state *)s->state;
    lr_episode *e = lr_new_episode(s);
    int64_t length, chunks = 1000;
    if (!e)
        return BAGS_ERROR_MEMORY;
    if (!lr_index(line, "episode_index", &e->number) ||
        !lr_index(line, "length", &length) || length < 1)
        return lr_fail(s, s->where, "a line without episode_index or length");
    e->length = (uint64_t)length;
    if (lr_index(l->info, "chunks_size", &chunks) && chunks == 0)
        chunks = 1000;
    lr_names names = {e->number / (chunks > 0 ? chunks : 1000), 0, e->number, NULL};
    const char *where = s->where;
    FORMAT_TRY(lr_path(s, l->data_path, &names, &e->path));
    for (size_t k = 0; k < l->camera_count; k++) {
        names.camera = l->cameras[k].name;
        e->parts[k].to = (double)length / l->rate;
        FORMAT_TRY(lr_path(s, l->video_path, &names, &e->parts[k].path));
    }
    s->where = where;
    return BAGS_OK;
}

static int lr_compare_episodes(const void *a, const void *b) {
    int64_t x = ((const lr_episode *)a)->number, y = ((const lr_episode *)b)->number;
    return x < y ? -1 : x > y;
}

/* NULL if there is no such episode. */
static lr_episode *lr_find_episode(const lr_state *l, int64_t number) {
    lr_episode key;
    memset(&key, 0, sizeof key);
    key.number = number;
    return l->episode_count ? (lr_episode *)bsearch(&key, l->episodes, l->episode_count,
                                  sizeof key, lr_compare_episodes)
                            : NULL;
}

static bags_code lr_add_stats(bags_source *s, json_object *line) {
    lr_state *l = (lr_state *)s->state;
    int64_t number;
    json_object *stats = bags_import_member(line, "stats", json_type_object);
    lr_episode *e =
        lr_index(line, "episode_index", &number) ? lr_find_episode(l, number) : NULL;
    if (!e || !stats)
        return lr_fail(s, s->where, "statistics of an episode that does not exist");
    e->stats = bags_source_print_json(s, stats);
    l->has_stats = true;
    return e->stats ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static bags_code lr_add_task(bags_source *s, json_object *line) {
    lr_state *l = (lr_state *)s->state;
    lr_task task;
    const char *text = bags_import_json_text(line, "task");
    if (!lr_index(line, "task_index", &task.number) ||
        !bags_import_member(line, "task", json_type_string))
        return lr_fail(s, s->where, "a line without task_index or task");
    task.text = bags_source_text(s, text, strlen(text));
    l->tasks = (lr_task *)bags_source_grow(s, l->tasks, l->task_count, sizeof task);
    if (!l->tasks || !task.text)
        return BAGS_ERROR_MEMORY;
    l->tasks[l->task_count++] = task;
    return BAGS_OK;
}

/* meta/tasks.parquet: pandas may have written the text as its index. */
static bags_code lr_read_tasks_3(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    const char *file = lr_below(s, "meta/tasks.parquet");
    const char *quoted = file ? bags_import_quote_path(s, file) : NULL;
    if (!quoted)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(lr_query(s, &l->table, file,
        bags_source_format(s,
            "SELECT column_name AS c FROM (DESCRIBE SELECT * FROM read_parquet(%s)) "
            "WHERE column_name IN ('task', '__index_level_0__') ORDER BY 1 DESC",
            quoted)));
    if (!l->table.row)
        return lr_fail(s, file, "no column task or __index_level_0__");
    const char *columns[2] = {lr_cast(s, "task_index", "BIGINT"),
        lr_cast(s, lr_text(s, &l->table, 0), "VARCHAR")};
    FORMAT_TRY(
        lr_query(s, &l->table, file, lr_select(s, columns, 2, quoted, "ORDER BY 1")));
    while (l->table.row) {
        lr_task task;
        bool good = lr_int(&l->table, 0, &task.number);
        task.text = lr_text(s, &l->table, 1);
        if (!good || !task.text)
            return lr_fail(s, file, "NULL in place of a task");
        l->tasks = (lr_task *)bags_source_grow(s, l->tasks, l->task_count, sizeof task);
        if (!l->tasks)
            return BAGS_ERROR_MEMORY;
        l->tasks[l->task_count++] = task;
        FORMAT_TRY(lr_next(s, &l->table));
    }
    return BAGS_OK;
}

static bool lr_is_before(
    int64_t chunk, int64_t file, int64_t of_chunk, int64_t of_file) {
    return chunk < of_chunk || (chunk == of_chunk && file < of_file);
}

/* All writers of version 3 append episodes: rows and frames are in the order of their
 * numbers. Metadata in another order has the frames of other episodes. */
static bags_code lr_check_order(
    bags_source *s, const lr_episode *last, const lr_episode *e) {
    lr_state *l = (lr_state *)s->state;
    const char *where = lr_below(s, "meta/episodes");
    if (e->from < last->from + (int64_t)last->length)
        return lr_fail_episode(s, BAGS_ERROR_CORRUPT, e->number, where,
            bags_source_format(s,
                "dataset_from_index %lld is before the end of episode %lld (%lld): "
                "episodes are in the order of their numbers",
                (long long)e->from, (long long)last->number,
                (long long)last->from + (long long)last->length));
    if (lr_is_before(e->chunk, e->file, last->chunk, last->file))
        return lr_fail_episode(s, BAGS_ERROR_CORRUPT, e->number, where,
            bags_source_format(s,
                "its data file %.200s is before the file of episode %lld: episodes are "
                "in the order of their numbers",
                e->path, (long long)last->number));
    for (size_t k = 0; k < l->camera_count; k++) {
        const lr_part *a = &last->parts[k], *b = &e->parts[k];
        if (a->chunk == b->chunk && a->file == b->file
                ? b->from < a->from
                : lr_is_before(b->chunk, b->file, a->chunk, a->file))
            return lr_fail_episode(s, BAGS_ERROR_CORRUPT, e->number, b->path,
                bags_source_format(s,
                    "camera %.200s: its frames (from %.6f s) are before the frames of "
                    "episode %lld (%.200s from %.6f s): metadata of episodes are "
                    "swapped",
                    l->cameras[k].name, b->from, (long long)last->number, a->path,
                    a->from));
    }
    return BAGS_OK;
}

static const char *lr_task_text(const lr_state *l, int64_t number) {
    for (size_t i = 0; i < l->task_count; i++)
        if (l->tasks[i].number == number)
            return l->tasks[i].text;
    return NULL;
}

static bags_code lr_read_meta(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    uint64_t frames = 0;
    FORMAT_TRY(l->is_v3 ? lr_read_tasks_3(s)
                        : lr_read_lines(s, "meta/tasks.jsonl", lr_add_task));
    FORMAT_TRY(l->is_v3 ? lr_read_episodes_3(s)
                        : lr_read_lines(s, "meta/episodes.jsonl", lr_add_episode));
    if (l->episode_count > 1)
        qsort(l->episodes, l->episode_count, sizeof *l->episodes, lr_compare_episodes);
    for (size_t i = 0; i < l->episode_count; i++) {
        frames += l->episodes[i].length;
        if (i > 0 && l->episodes[i - 1].number == l->episodes[i].number)
            return lr_fail_episode(s, BAGS_ERROR_CORRUPT, l->episodes[i].number,
                lr_below(s, "meta"), "its metadata has two rows");
        if (i > 0 && l->is_v3)
            FORMAT_TRY(lr_check_order(s, &l->episodes[i - 1], &l->episodes[i]));
    }
    FORMAT_TRY(lr_check_total(s, "total_episodes", l->episode_count));
    FORMAT_TRY(lr_check_total(s, "total_frames", frames));
    if (!l->is_v3 &&
        bags_import_kind(s->path, "meta/episodes_stats.jsonl") != BAGS_PATH_NONE)
        FORMAT_TRY(lr_read_lines(s, "meta/episodes_stats.jsonl", lr_add_stats));
    for (size_t i = 0; l->has_stats && i < l->episode_count; i++)
        if (!l->episodes[i].stats)
            return lr_fail_episode(s, BAGS_ERROR_CORRUPT, l->episodes[i].number,
                lr_below(s, "meta"), "no statistics (other episodes have them)");
    return BAGS_OK;
}

/* ---- checks of all episodes ---- */

/* The rows of each episode in each file, in SQL. */
static const char *lr_count_rows(bags_source *s) {
    const char *files = lr_glob(s, "data/*/*.parquet");
    return files ? bags_source_format(s,
                       "SELECT CAST(episode_index AS BIGINT) AS c0, filename AS c1, "
                       "count(*) AS c2, CAST(min(frame_index) AS BIGINT) AS c3, "
                       "CAST(max(frame_index) AS BIGINT) AS c4, CAST(min(\"index\") AS "
                       "BIGINT) AS c5, CAST(max(\"index\") AS BIGINT) AS c6 FROM "
                       "read_parquet(%s, hive_partitioning=false, filename=true) "
                       "GROUP BY 1, 2 ORDER BY 1, 2",
                       files)
                 : NULL;
}

/* Check the rows of the table of lr_count_rows, an episode in a file. */
static bags_code lr_check_count(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    int64_t number, found[5];
    const char *file = lr_text(s, &l->table, 1);
    bool good = lr_int(&l->table, 0, &number) && file;
    for (size_t i = 0; i < 5; i++)
        good = lr_int(&l->table, 2 + i, &found[i]) && good;
    if (!good)
        return lr_fail(s, file ? file : l->table.file,
            "NULL in episode_index, frame_index or index");
    lr_episode *e = lr_find_episode(l, number);
    if (!e) {
        bags_source_leave_out(s, "orphaned row", (uint64_t)found[0],
            "episode %lld is not in meta: %s", (long long)number, file);
        return BAGS_OK;
    }
    if (strcmp(file, e->path) != 0)
        return lr_fail_episode(s, BAGS_ERROR_CORRUPT, number, file,
            bags_source_format(
                s, "rows in another file than its metadata states (%.300s)", e->path));
    if ((uint64_t)found[0] != e->length)
        return lr_fail_episode(s, BAGS_ERROR_CORRUPT, number, file,
            bags_source_format(s, "%lld rows, its metadata has the length %" PRIu64,
                (long long)found[0], e->length));
    if (found[1] != 0 || found[2] != found[0] - 1 ||
        (uint64_t)found[4] - (uint64_t)found[3] != (uint64_t)found[0] - 1)
        return lr_fail_episode(s, BAGS_ERROR_CORRUPT, number, file,
            bags_source_format(s,
                "gaps: %lld rows have frame_index %lld to %lld and index %lld to %lld",
                (long long)found[0], (long long)found[1], (long long)found[2],
                (long long)found[3], (long long)found[4]));
    if (e->from >= 0 && found[3] != e->from)
        return lr_fail_episode(s, BAGS_ERROR_CORRUPT, number, file,
            bags_source_format(s, "index begins at %lld, dataset_from_index is %lld",
                (long long)found[3], (long long)e->from));
    e->from = found[3];
    e->rows = (uint64_t)found[0];
    return BAGS_OK;
}

static bags_code lr_check_rows(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    FORMAT_TRY(lr_query(s, &l->table, lr_below(s, "data"), lr_count_rows(s)));
    for (; l->table.row;) {
        FORMAT_TRY(lr_check_count(s));
        FORMAT_TRY(lr_next(s, &l->table));
    }
    for (size_t i = 0; i < l->episode_count; i++) {
        const lr_episode *e = &l->episodes[i];
        if (e->rows == 0)
            return lr_fail_episode(s, BAGS_ERROR_CORRUPT, e->number, e->path,
                bags_import_kind(e->path, NULL) == BAGS_PATH_FILE
                    ? "no rows in this file"
                    : "the file is missing");
    }
    return BAGS_OK;
}

static bags_code lr_fail_camera(bags_source *s, bags_code code, const lr_camera *camera,
    const lr_part *part, const char *what) {
    return lr_fail_episode(s, code, part->episode, part->path,
        bags_source_format(s, "camera %.200s: %s", camera->name, what));
}

/* Prefix an error that names the file of a part. */
static bags_code lr_prefix_camera(
    bags_source *s, bags_code code, const lr_camera *camera, const lr_part *part) {
    return bags_prefix(s->err, code,
        "episode %lld: camera %.200s: ", (long long)part->episode, camera->name);
}

/* Describe a rate that contradicts meta/info.json: `count` frames in `seconds` from the
 * first to the last one. NULL: it fits. Containers round times, and info.json a rate such
 * as 29.97: 1 percent fits, or half a frame. */
static const char *lr_rate_fault(bags_source *s, size_t count, double seconds) {
    lr_state *l = (lr_state *)s->state;
    double stated = (double)(count - 1), frames = seconds * l->rate;
    double off = frames < stated ? stated - frames : frames - stated;
    if (count < 2 || off < 0.5 || off <= 0.01 * stated)
        return NULL;
    const char *fault = bags_source_format(s,
        "%llu frames in %.6f s are %.6g per second, meta/info.json has fps %.6g",
        (unsigned long long)count, seconds, stated / seconds, l->rate);
    return fault ? fault : "";
}

/* Find the first frame of a part in the open video. All its frames must exist. */
static bags_code lr_find_start(
    bags_source *s, const lr_camera *camera, const lr_part *part, size_t *start) {
    lr_state *l = (lr_state *)s->state;
    const cut_file *cut = &camera->cut;
    double half = 0.5 / l->rate;
    *start = cut_find(cut, part->from - half);
    size_t left = cut->shown_count - *start;
    size_t count = part->length < left ? (size_t)part->length : left;
    const char *fault =
        count ? lr_rate_fault(
                    s, count, cut_time(cut, *start + count - 1) - cut_time(cut, *start))
              : NULL;
    if (fault)
        return lr_fail_camera(s, BAGS_ERROR_VALUE, camera, part, fault);
    size_t stop = l->is_v3 ? cut_find(cut, part->to - half) : cut->shown_count;
    if (stop >= *start && stop - *start == part->length)
        return BAGS_OK;
    return lr_fail_camera(s, BAGS_ERROR_VALUE, camera, part,
        bags_source_format(s,
            "the video has %lld frames from %.6f to %.6f s, the episode %" PRIu64
            " rows",
            (long long)stop - (long long)*start, part->from, part->to, part->length));
}

static int lr_compare_parts(const void *a, const void *b) {
    const lr_part *x = (const lr_part *)a, *y = (const lr_part *)b;
    int order = strcmp(x->path, y->path);
    return order ? order : x->from < y->from ? -1 : x->from > y->from;
}

/* Fail if the open video has frames of the size of another camera. */
static bags_code lr_check_sides(
    bags_source *s, const lr_camera *camera, const lr_part *part) {
    lr_state *l = (lr_state *)s->state;
    uint64_t sides[2];
    cut_sides(&camera->cut, sides);
    if (!camera->sides[0] || memcmp(sides, camera->sides, sizeof sides) == 0)
        return BAGS_OK;
    for (size_t i = 0; i < l->camera_count; i++) {
        if (memcmp(sides, l->cameras[i].sides, sizeof sides) == 0)
            return lr_fail_camera(s, BAGS_ERROR_CORRUPT, camera, part,
                bags_source_format(s,
                    "its frames have the size of camera %.200s (sides of %" PRIu64
                    " and %" PRIu64 "; meta/info.json: %" PRIu64 " and %" PRIu64 ")",
                    l->cameras[i].name, sides[0], sides[1], camera->sides[0],
                    camera->sides[1]));
    }
    return BAGS_OK;
}

/* Check the files of a camera: they exist, have the frames of all parts, and no frame is in
 * two. Count the frames of no part. Sorts `parts`, of all episodes. */
static bags_code lr_check_parts(bags_source *s, lr_camera *camera, lr_part *parts) {
    lr_state *l = (lr_state *)s->state;
    uint64_t used = 0;
    if (l->episode_count > 0)
        qsort(parts, l->episode_count, sizeof *parts, lr_compare_parts);
    for (size_t i = 0; i < l->episode_count; i++) {
        const lr_part *part = &parts[i];
        bool same = i > 0 && strcmp(part[-1].path, part->path) == 0;
        bool is_last =
            i + 1 == l->episode_count || strcmp(part[1].path, part->path) != 0;
        const char *what = NULL;
        size_t start;
        if (!same && bags_import_kind(part->path, NULL) != BAGS_PATH_FILE)
            what = "the file is missing";
        else if (!(part->from >= 0 && part->to > part->from && part->to < 1e9))
            what = "invalid times";
        else if (same && part[-1].to - part->from > 0.5 / l->rate)
            what = bags_source_format(
                s, "episode %lld has the same frames", (long long)part[-1].episode);
        if (what)
            return lr_fail_camera(s, BAGS_ERROR_CORRUPT, camera, part,
                bags_source_format(
                    s, "%s (%.6f to %.6f s)", what, part->from, part->to));
        if (!same) {
            bags_code code = cut_open(s, &camera->cut, part->path);
            if (code)
                return lr_prefix_camera(s, code, camera, part);
            FORMAT_TRY(lr_check_sides(s, camera, part));
            used = 0;
        }
        FORMAT_TRY(lr_find_start(s, camera, part, &start));
        used += part->length;
        if (is_last && camera->cut.shown_count > used)
            bags_source_leave_out(s, "unused video frame",
                camera->cut.shown_count - used, "%s", part->path);
    }
    return BAGS_OK;
}

/* Count the videos that no episode refers to. */
static bags_code lr_check_videos(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    size_t count = l->episode_count * l->camera_count;
    lr_part *parts = (lr_part *)bags_source_alloc(s, count + 1, sizeof *parts);
    if (!parts || l->camera_count == 0)
        return parts ? BAGS_OK : BAGS_ERROR_MEMORY;
    for (size_t k = 0; k < l->camera_count; k++) {
        lr_part *first = parts + k * l->episode_count;
        for (size_t i = 0; i < l->episode_count; i++) {
            lr_part *part = &l->episodes[i].parts[k];
            part->episode = l->episodes[i].number;
            part->length = l->episodes[i].length;
            first[i] = *part;
        }
        FORMAT_TRY(lr_check_parts(s, &l->cameras[k], first));
    }
    for (size_t i = 0; i < count; i++)
        parts[i].from = 0;
    qsort(parts, count, sizeof *parts, lr_compare_parts);
    const char *pattern = lr_glob(s, "videos/**/*.mp4");
    FORMAT_TRY(lr_query(s, &l->table, lr_below(s, "videos"),
        pattern ? bags_source_format(
                      s, "SELECT file AS c FROM glob(%s) ORDER BY 1", pattern)
                : NULL));
    while (l->table.row) {
        lr_part key;
        memset(&key, 0, sizeof key);
        key.path = lr_text(s, &l->table, 0);
        if (!key.path)
            return BAGS_ERROR_MEMORY;
        if (!count || !bsearch(&key, parts, count, sizeof key, lr_compare_parts))
            bags_source_leave_out(s, "unused video", 1, "%s", key.path);
        FORMAT_TRY(lr_next(s, &l->table));
    }
    return BAGS_OK;
}

/* ---- fields ---- */

/* DuckDB's name of a dtype up to float64, except float16. */
static const char *lr_sql_type(bags_dtype dtype) {
    static const char *const names[] = {"", "BOOLEAN", "UTINYINT", "USMALLINT",
        "UINTEGER", "UBIGINT", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "", "FLOAT",
        "DOUBLE"};
    return names[dtype];
}

/* Set the expression of a feature whose column in the first file has type `found`: NULL
 * where a row has another type or shape. */
static bags_code lr_set_expression(bags_source *s, lr_feature *f, const char *found) {
    const char *x = bags_import_quote(s, f->name, '"');
    const char *type = lr_sql_type(f->number);
    if (!x)
        return BAGS_ERROR_MEMORY;
    if (!f->number) {
        f->expression = x;
        return BAGS_OK;
    }
    bool is_number = f->size == 1 && !strchr(found, '[');
    if (is_number && f->is_list && f->dims == 1) {
        f->expression = bags_source_format(s,
            "CAST(CASE WHEN typeof(%s) = '%s' THEN [%s] END AS %s[1])", x, type, x,
            type);
    } else if (is_number) {
        f->dims = 0;
        f->expression = bags_source_format(
            s, "CASE WHEN typeof(%s) = '%s' THEN %s END", x, type, x);
    } else if (f->dims == 1) {
        unsigned long long n = f->shape[0];
        f->expression = bags_source_format(s,
            "CAST(CASE WHEN typeof(%s) IN ('%s[]', '%s[%llu]') AND len(%s) = %llu THEN "
            "%s END AS %s[%llu])",
            x, type, type, n, x, n, x, type, n);
    } else {
        unsigned long long n = f->shape[0], m = f->shape[1];
        f->expression = bags_source_format(s,
            "CAST(CASE WHEN typeof(%s) IN ('%s[][]', '%s[%llu][%llu]') AND len(%s) = "
            "%llu AND len([r FOR r IN %s IF len(r) = %llu]) = %llu THEN flatten(%s) "
            "END "
            "AS %s[%llu])",
            x, type, type, m, n, x, n, x, m, n, x, type, n * m);
    }
    return f->expression ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Find the columns of the features in the first file, and whether images are JPEG or PNG in
 * all files. */
static bags_code lr_set_expressions(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    const char *file = l->episodes[0].path;
    const char *quoted = bags_import_quote_path(s, file);
    FORMAT_TRY(lr_query(s, &l->table, file,
        quoted ? bags_source_format(s,
                     "SELECT column_name AS c0, column_type AS c1 FROM (DESCRIBE "
                     "SELECT * FROM read_parquet(%s, hive_partitioning=false))",
                     quoted)
               : NULL));
    while (l->table.row) {
        const char *name = lr_text(s, &l->table, 0), *type = lr_text(s, &l->table, 1);
        bool known = name && strcmp(name, "episode_index") == 0;
        if (!name || !type)
            return BAGS_ERROR_MEMORY;
        for (size_t i = 0; i < l->feature_count; i++)
            if (strcmp(l->features[i].name, name) == 0) {
                FORMAT_TRY(lr_set_expression(s, &l->features[i], type));
                known = true;
            }
        if (!known)
            bags_source_leave_out(s, "other column", 1, "%s", name);
        FORMAT_TRY(lr_next(s, &l->table));
    }
    for (size_t i = 0; i < l->feature_count; i++)
        if (!l->features[i].expression)
            return lr_fail_episode(s, BAGS_ERROR_CORRUPT, l->episodes[0].number, file,
                bags_source_format(
                    s, "no column of feature %.200s", l->features[i].name));
    return BAGS_OK;
}

/* The type of an image feature, by all its values. */
static bags_code lr_image_type(bags_source *s, const lr_feature *f, const char **type) {
    lr_state *l = (lr_state *)s->state;
    const char *files = lr_glob(s, "data/*/*.parquet");
    FORMAT_TRY(lr_query(
        s, &l->table, lr_below(s, "data"), lr_select(s, &f->expression, 1, files, "")));
    if (l->table.source->count != 1 || !l->table.source->fields)
        return lr_fail(s, l->table.file,
            bags_source_format(
                s, "feature %.200s: not {bytes, path} of an image", f->name));
    const char *found = l->table.source->fields[0].type;
    *type = bags_source_text(s, found, strcspn(found, "["));
    lr_close_table(&l->table);
    return *type ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* {"lerobot": {"info": meta/info.json, "stats": meta/stats.json, "tasks": {TEXT: NUMBER}}},
 * and the members of "bags" in info.json. */
static bags_code lr_set_metadata(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    json_object *all = json_object_new_object(), *of = json_object_new_object();
    json_object *tasks = json_object_new_object(), *stats = NULL;
    bags_code code = BAGS_OK;
    if (bags_import_kind(s->path, "meta/stats.json") == BAGS_PATH_FILE) {
        s->where = lr_below(s, "meta/stats.json");
        code = s->where ? bags_source_json(s, s->where, &stats) : BAGS_ERROR_MEMORY;
        if (code && code != BAGS_ERROR_MEMORY) /* NaN is not JSON */
            bags_source_leave_out(s, "file", 1, "meta/stats.json");
        code = code == BAGS_ERROR_MEMORY ? code : BAGS_OK;
    }
    for (size_t i = 0; i < l->task_count; i++)
        json_object_object_add(
            tasks, l->tasks[i].text, json_object_new_int64(l->tasks[i].number));
    json_object *others = bags_import_member(l->info, "bags", json_type_object);
    if (others) {
        json_object_object_foreach(others, name, value)
            json_object_object_add(all, name, json_object_get(value));
        json_object_object_del(l->info, "bags");
    }
    json_object_object_add(of, "info", json_object_get(l->info));
    if (stats)
        json_object_object_add(of, "stats", stats);
    json_object_object_add(of, "tasks", tasks);
    json_object_object_add(all, "lerobot", of);
    s->metadata = bags_source_print_json(s, all);
    json_object_put(all);
    return code || s->metadata ? code : BAGS_ERROR_MEMORY;
}

static bags_code lr_add_fields(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    bags_source_field(s, "episode_index", "i64");
    for (size_t i = 0; i < l->feature_count; i++) {
        lr_feature *f = &l->features[i];
        const char *type = "utf8";
        f->field = s->count;
        if (f->number)
            type = bags_source_number_type(s, f->number, f->dims, f->shape, true);
        else if (f->is_image)
            FORMAT_TRY(lr_image_type(s, f, &type));
        bags_source_field(
            s, f->name, f->number ? type : bags_source_format(s, "%s[]", type));
    }
    for (size_t k = 0; k < l->camera_count; k++) {
        l->cameras[k].field = s->count;
        bags_source_field(s, l->cameras[k].name, "mp4");
    }
    l->tasks_field = s->count;
    bags_source_field(s, "tasks", "utf8[]");
    l->stats_field = s->count;
    if (l->has_stats)
        bags_source_field(s, "stats", "utf8");
    return lr_set_metadata(s);
}

static bags_code lr_open(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    /* DuckDB writes paths with one /. */
    l->root = bags_source_text(s, s->path, format_path_size(s->path));
    if (!l->root)
        return BAGS_ERROR_MEMORY;
    FORMAT_TRY(lr_read_info(s));
    FORMAT_TRY(lr_read_meta(s));
    if (l->episode_count == 0)
        return lr_fail(s, lr_below(s, "meta"), "no episodes");
    FORMAT_TRY(lr_check_rows(s));
    FORMAT_TRY(lr_check_videos(s));
    FORMAT_TRY(lr_set_expressions(s));
    FORMAT_TRY(lr_add_fields(s));
    lr_close_table(&l->table);
    s->length = l->episode_count;
    return BAGS_OK;
}

/* ---- reading ---- */

/* Columns of a file of rows: these, then the features. */
enum { LR_EPISODE, LR_FRAME, LR_INDEX, LR_TASK, LR_TIME, LR_FIRST };

/* Open the file of an episode's rows, and skip the episodes before it. */
static bags_code lr_open_rows(bags_source *s, const lr_episode *e) {
    static const char *const names[] = {
        "episode_index", "frame_index", "index", "task_index", "timestamp"};
    lr_state *l = (lr_state *)s->state;
    lr_table *frames = &l->frames;
    if (!frames->source || strcmp(frames->file, e->path) != 0) {
        const char **columns = (const char **)bags_source_alloc(
            s, LR_FIRST + l->feature_count, sizeof *columns);
        if (!columns)
            return BAGS_ERROR_MEMORY;
        for (size_t i = 0; i < LR_FIRST; i++)
            columns[i] = lr_cast(s, names[i], i < LR_TIME ? "BIGINT" : "DOUBLE");
        for (size_t i = 0; i < l->feature_count; i++)
            columns[LR_FIRST + i] = l->features[i].expression;
        FORMAT_TRY(lr_query(s, frames, e->path,
            lr_select(s, columns, LR_FIRST + l->feature_count,
                bags_import_quote_path(s, e->path),
                bags_source_format(
                    s, "WHERE episode_index >= %lld", (long long)e->number))));
        if (frames->source->count != LR_FIRST + l->feature_count)
            return lr_fail_episode(
                s, BAGS_ERROR_TYPE, e->number, e->path, "a feature is a struct");
    }
    for (int64_t number = 0; frames->row;) {
        if (!lr_int(frames, LR_EPISODE, &number) || number == e->number)
            break;
        FORMAT_TRY(lr_next(s, frames));
    }
    return BAGS_OK;
}

static bags_code lr_fail_frame(bags_source *s, const lr_episode *e, uint64_t frame,
    const char *what, const char *name) {
    return lr_fail_episode(s, BAGS_ERROR_VALUE, e->number, e->path,
        bags_source_format(
            s, "frame %" PRIu64 ": %s%.200s", frame, what, name ? name : ""));
}

/* Copy a value of a feature: frame `frame` of `values`, with its numbers in `numbers`. */
static bags_code lr_copy(bags_source *s, const lr_feature *f, const bags_value *from,
    bags_value *to, unsigned char *numbers) {
    *to = *from;
    if (f->number && f->dims == 0 && from->kind != BAGS_KIND_ARRAY)
        return BAGS_OK; /* an integer */
    if (!f->number) {
        to->data = bags_source_text(s, from->data, from->size);
        return to->data ? BAGS_OK : BAGS_ERROR_MEMORY;
    }
    memcpy(numbers, from->data, from->size);
    *to = bags_array(f->number, f->dims, f->shape, numbers);
    return BAGS_OK;
}

/* Read the rows of an episode. Sets the entries of the features and of the tasks. times: of
 * each frame. */
static bags_code lr_read_rows(bags_source *s, const lr_episode *e, double *times) {
    lr_state *l = (lr_state *)s->state;
    lr_table *frames = &l->frames;
    size_t length = (size_t)e->length, task_count = 0;
    int64_t last_task = -1;
    int64_t *seen = NULL;
    bags_value *texts = NULL;
    unsigned char **numbers =
        (unsigned char **)bags_source_alloc(s, l->feature_count + 1, sizeof *numbers);
    bags_value **values =
        (bags_value **)bags_source_alloc(s, l->feature_count + 1, sizeof *values);
    for (size_t i = 0; i < l->feature_count; i++) {
        const lr_feature *f = &l->features[i];
        size_t size = (size_t)f->size * bags_dtype_size(f->number);
        if (!numbers || !values || (size && length > SIZE_MAX / size))
            return BAGS_ERROR_MEMORY;
        values[i] = (bags_value *)bags_source_alloc(s, length, sizeof **values);
        numbers[i] = (unsigned char *)bags_source_alloc(s, length, size ? size : 1);
        if (!values[i] || !numbers[i])
            return BAGS_ERROR_MEMORY;
        s->entries[f->field].values = values[i];
        s->entries[f->field].count = length;
    }
    FORMAT_TRY(lr_open_rows(s, e));
    for (size_t k = 0; k < length; k++) {
        int64_t number = -1, frame = -1, index = -1, task = -1;
        if (!frames->row)
            return lr_fail_frame(
                s, e, k, "not in this place: the rows are not in order", NULL);
        if (!lr_int(frames, LR_EPISODE, &number) || !lr_int(frames, LR_FRAME, &frame) ||
            !lr_int(frames, LR_INDEX, &index) || !lr_int(frames, LR_TASK, &task) ||
            !lr_real(frames, LR_TIME, &times[k]))
            return lr_fail_frame(s, e, k, "NULL in one of the indexes", NULL);
        if (number != e->number || frame != (int64_t)k || index != e->from + (int64_t)k)
            return lr_fail_frame(s, e, k,
                bags_source_format(s,
                    "the rows are not in order (episode_index %lld, frame_index %lld, "
                    "index %lld)",
                    (long long)number, (long long)frame, (long long)index),
                NULL);
        if (task != last_task) {
            size_t i = 0;
            const char *text = lr_task_text(l, task);
            if (!text)
                return lr_fail_frame(s, e, k,
                    bags_source_format(
                        s, "no task has task_index %lld", (long long)task),
                    NULL);
            while (i < task_count && seen[i] != task)
                i++;
            if (i == task_count) {
                seen = (int64_t *)bags_source_grow(s, seen, i, sizeof *seen);
                texts = (bags_value *)bags_source_grow(s, texts, i, sizeof *texts);
                if (!seen || !texts)
                    return BAGS_ERROR_MEMORY;
                seen[i] = task;
                texts[i] = bags_utf8(text);
                task_count++;
            }
            last_task = task;
        }
        for (size_t i = 0; i < l->feature_count; i++) {
            const lr_feature *f = &l->features[i];
            const bags_value *value = lr_value(frames, LR_FIRST + i);
            size_t size = (size_t)f->size * bags_dtype_size(f->number);
            if (!value)
                return lr_fail_frame(s, e, k,
                    "missing, or not of the dtype and shape in meta/info.json: "
                    "feature ",
                    f->name);
            FORMAT_TRY(lr_copy(s, f, value, &values[i][k], numbers[i] + k * size));
        }
        FORMAT_TRY(lr_next(s, frames));
    }
    const char *fault = lr_rate_fault(s, length, times[length - 1] - times[0]);
    if (fault)
        return lr_fail_episode(s, BAGS_ERROR_VALUE, e->number, e->path,
            bags_source_format(s, "timestamps: %s", fault));
    s->entries[l->tasks_field].values = texts;
    s->entries[l->tasks_field].count = task_count;
    return BAGS_OK;
}

/* Read the part of a camera, if each of its frames is at the time of its row. */
static bags_code lr_read_video(
    bags_source *s, const lr_episode *e, size_t k, const double *times) {
    lr_state *l = (lr_state *)s->state;
    lr_camera *camera = &l->cameras[k];
    const lr_part *part = &e->parts[k];
    size_t start = 0, length = (size_t)e->length;
    bags_view video;
    bags_code code = cut_open(s, &camera->cut, part->path);
    if (code)
        return lr_prefix_camera(s, code, camera, part);
    FORMAT_TRY(lr_find_start(s, camera, part, &start));
    for (size_t i = 0; i < length; i++) {
        double time = cut_time(&camera->cut, start + i) - part->from;
        double off = (time - times[i]) * l->rate;
        if (!(off < 0.5 && off > -0.5))
            return lr_fail_camera(s, BAGS_ERROR_VALUE, camera, part,
                bags_source_format(s,
                    "frame %llu is at %.6f s of the episode, its row at %.6f s",
                    (unsigned long long)i, time, times[i]));
    }
    code = l->is_v3 ? cut_part(s, &camera->cut, start, length, &video)
                    : bags_source_copy(s, 0, s->file.size, &video);
    if (code)
        return lr_prefix_camera(s, code, camera, part);
    s->values[camera->field] = bags_blob(video.data, video.size);
    return BAGS_OK;
}

static bags_code lr_read(bags_source *s, uint64_t index) {
    lr_state *l = (lr_state *)s->state;
    if (s->ended)
        return BAGS_OK;
    const lr_episode *e = &l->episodes[index];
    double *times = (double *)bags_source_alloc(s, (size_t)e->length, sizeof *times);
    if (!times)
        return BAGS_ERROR_MEMORY;
    s->values[0] = bags_int(e->number);
    FORMAT_TRY(lr_read_rows(s, e, times));
    for (size_t k = 0; k < l->camera_count; k++)
        FORMAT_TRY(lr_read_video(s, e, k, times));
    if (l->has_stats)
        s->values[l->stats_field] = bags_utf8(e->stats);
    return BAGS_OK;
}

static void lr_close(bags_source *s) {
    lr_state *l = (lr_state *)s->state;
    lr_close_table(&l->table);
    lr_close_table(&l->frames);
    json_object_put(l->info);
}

const bags_importer bags_import_lerobot = {
    "lerobot", bags_import_is_lerobot, sizeof(lr_state), lr_open, lr_read, lr_close};
