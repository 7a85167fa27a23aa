/*
 * lerobot.h - the state of lerobot.c: features, and their statistics. Private.
 */
#ifndef BAGS_EXPORT_LEROBOT_H
#define BAGS_EXPORT_LEROBOT_H

#include "duckdb_copy.h"
#include "mp4_join.h"

#include <json-c/json.h>
#include <math.h>

#define LX_CHUNK 1000                   /* files in a directory */
#define LX_DATA ((uint64_t)100 << 20)   /* bytes of values in a file of rows */
#define LX_VIDEOS ((uint64_t)200 << 20) /* bytes of a file of videos */
#define LX_NESTED 8                     /* most lists in a statistic */

/* Kinds of fields, and of features that the export makes. */
typedef enum lx_kind {
    LX_NUMBER,
    LX_TEXT,
    LX_IMAGE,
    LX_VIDEO,
    LX_TASKS,
    LX_STATS,
    LX_TIME,
    LX_FRAME,
    LX_EPISODE,
    LX_INDEX,
    LX_TASK
} lx_kind;

static const char *const lx_own[] = {
    "timestamp", "frame_index", "episode_index", "index", "task_index"};

/* Statistics of a feature's elements. */
typedef struct lx_numbers {
    double *least, *most, *mean, *square; /* square: the sum of squared differences */
    uint64_t count;
} lx_numbers;

typedef struct lx_feature {
    const char *name;
    lx_kind kind;
    bags_target_field *field; /* NULL: made by the export */
    size_t rank;              /* its place among the features */
    size_t size;              /* elements of a value */
    bool is_list;             /* an array of one element: in the column, a number */
    lx_numbers episode, total;
    uint64_t height, width, channels; /* of images; 0: not known yet */
    json_object *stored;              /* as in the metadata, or NULL */
    /* Of images: statistics of the field stats, and the lists of one of them (owned). */
    lx_numbers pixels;
    json_object *lists;
    bool lacks_pixels; /* in some episode */
    mp4_join_video *video;
    uint64_t video_file; /* number of the file of its last video, */
    double from, to;     /* and its times in it */
} lx_feature;

/* A column of statistics in meta/episodes. */
typedef struct lx_stat {
    const char *feature, *name;
    const lx_feature *of; /* computed; NULL: from the field stats */
    size_t lists;
} lx_stat;

/* A number in the field task_index, and the exported one. */
typedef struct lx_seen {
    uint64_t stated;
    int64_t number;
} lx_seen;

typedef struct lx_state {
    dx_session session;
    json_object *metadata; /* owned, with these parts; each may be NULL */
    json_object *info, *stats, *known_tasks;
    lx_feature *features;
    size_t feature_count;
    bags_target_field *episode, *frame, *index, *task, *tasks, *time, *statistics;
    double fps;
    uint64_t video_limit;
    json_object *tasks_by_text;             /* owned; the number of each text */
    bags_export_bytes task_texts;           /* const char *: of each number */
    bags_export_bytes task_list, time_list; /* int64_t, double: of each frame */
    bags_export_bytes seen; /* lx_seen: the numbers of the episode's field task_index */
    bags_export_bytes rows, row_ends; /* of meta/episodes, in SQL; size_t */
    bags_export_bytes text;
    lx_stat *columns;
    size_t column_count;
    bool has_columns, has_table;
    uint64_t episodes, frames;    /* that ended */
    size_t frame_count, frame_at; /* of the episode that is written */
} lx_state;

/* ---- JSON ---- */

static inline json_object *lx_member(
    json_object *of, const char *name, json_type type) {
    json_object *found = NULL;
    if (!json_object_is_type(of, json_type_object) ||
        !json_object_object_get_ex(of, name, &found))
        return NULL;
    return json_object_is_type(found, type) ? found : NULL;
}

/* A number, with the fewest digits. NaN and Infinity are not JSON, but Python reads them. */
static inline json_object *lx_json_real(double number) {
    char text[40];
    if (!isfinite(number))
        return json_object_new_double(number);
    format_json_real(text, number);
    return json_object_new_double_s(number, text);
}

static inline json_object *lx_parse(const void *text, size_t size) {
    struct json_tokener *tokener = json_tokener_new();
    json_object *out = NULL;
    if (!tokener || size > INT32_MAX)
        return NULL;
    out = json_tokener_parse_ex(tokener, (const char *)text, (int)size);
    size_t end = json_tokener_get_parse_end(tokener);
    while (end < size && strchr(" \t\r\n", ((const char *)text)[end]))
        end++;
    if (json_tokener_get_error(tokener) != json_tokener_success || end < size) {
        json_object_put(out);
        out = NULL;
    }
    json_tokener_free(tokener);
    return out;
}

static inline bool lx_has_numbers(const lx_feature *f) {
    return f->kind == LX_NUMBER || f->kind >= LX_TIME;
}

/* ---- statistics ---- */

static inline double lx_element(const bags_value *value, size_t i) {
    uint64_t bits = bags_target_bits(value, i);
    bool is_array = value->kind == BAGS_KIND_ARRAY;
    if (is_array &&
        (value->dtype == BAGS_DTYPE_FLOAT32 || value->dtype == BAGS_DTYPE_FLOAT64))
        return format_real(bits, bags_dtype_size(value->dtype));
    bool has_sign =
        is_array ? value->dtype >= BAGS_DTYPE_INT8 && value->dtype <= BAGS_DTYPE_INT64
                 : value->kind == BAGS_KIND_INT;
    return has_sign && bits >> 63 ? -(double)(~bits + 1) : (double)bits;
}

static inline bags_code lx_alloc_numbers(
    bags_target *t, lx_numbers *numbers, size_t size) {
    double *all = (double *)bags_target_alloc(t, 4 * size, sizeof *all);
    if (!all)
        return BAGS_ERROR_MEMORY;
    numbers->least = all;
    numbers->most = all + size;
    numbers->mean = all + 2 * size;
    numbers->square = all + 3 * size;
    return BAGS_OK;
}

static inline void lx_count(lx_numbers *n, size_t i, double x) {
    double delta = x - n->mean[i];
    bool first = n->count == 0;
    n->least[i] = first || x < n->least[i] || isnan(x) ? x : n->least[i];
    n->most[i] = first || x > n->most[i] || isnan(x) ? x : n->most[i];
    n->mean[i] = first ? x : n->mean[i] + delta / (double)(n->count + 1);
    n->square[i] = first ? 0 : n->square[i] + delta * (x - n->mean[i]);
}

/* Add the statistics of an episode to the totals. */
static inline void lx_merge(lx_numbers *to, const lx_numbers *from, size_t size) {
    double a = (double)to->count, b = (double)from->count;
    for (size_t i = 0; i < size; i++) {
        double delta = from->mean[i] - to->mean[i];
        if (to->count == 0) {
            to->least[i] = from->least[i];
            to->most[i] = from->most[i];
            to->mean[i] = from->mean[i];
            to->square[i] = from->square[i];
            continue;
        }
        double least = from->least[i], most = from->most[i];
        to->least[i] = least < to->least[i] || isnan(least) ? least : to->least[i];
        to->most[i] = most > to->most[i] || isnan(most) ? most : to->most[i];
        to->mean[i] += delta * b / (a + b);
        to->square[i] += from->square[i] + delta * delta * a * b / (a + b);
    }
    to->count += from->count;
}

static const char *const lx_stat_names[] = {"count", "max", "mean", "min", "std"};

static inline double lx_stat_of(const lx_numbers *n, size_t name, size_t i) {
    if (name == 1 || name == 3)
        return name == 1 ? n->most[i] : n->least[i];
    return name == 2 ? n->mean[i] : sqrt(n->square[i] / (double)n->count);
}

/* A statistic as JSON, with the shape of the feature. */
static inline json_object *lx_stat_json(
    const lx_feature *f, const lx_numbers *n, size_t name, size_t dim, size_t at) {
    json_object *list = json_object_new_array();
    size_t dims = f->field && name ? f->field->dims : 0;
    uint64_t length = dim < dims ? f->field->shape[dim] : 1;
    size_t step = dim + 2 == dims ? (size_t)f->field->shape[1] : 1;
    for (size_t i = 0; list && i < length; i++)
        json_object_array_add(
            list, name == 0        ? json_object_new_int64((int64_t)n->count)
                  : dim + 1 < dims ? lx_stat_json(f, n, name, dim + 1, at + i * step)
                                   : lx_json_real(lx_stat_of(n, name, at + i)));
    return list;
}

/* ---- statistics of images ---- */

/* Copy the numbers of nested lists to `out`, up to `most`. Returns their number. */
static inline size_t lx_flatten(json_object *json, double *out, size_t most) {
    size_t count = 0;
    if (!json_object_is_type(json, json_type_array)) {
        if (most)
            *out = json_object_get_double(json);
        return 1;
    }
    for (size_t i = 0; i < json_object_array_length(json); i++)
        count += lx_flatten(json_object_array_get_idx(json, i),
            most ? out + count : out, count < most ? most - count : 0);
    return count;
}

/* Make nested lists like `lists`, of a statistic. *at: the next number. */
static inline json_object *lx_nest(
    json_object *lists, const lx_numbers *numbers, size_t name, size_t *at) {
    if (!json_object_is_type(lists, json_type_array))
        return lx_json_real(lx_stat_of(numbers, name, (*at)++));
    json_object *out = json_object_new_array();
    for (size_t i = 0; out && i < json_object_array_length(lists); i++)
        json_object_array_add(
            out, lx_nest(json_object_array_get_idx(lists, i), numbers, name, at));
    return out;
}

/* Add the statistics of images in an episode, by the field stats, to the totals. */
static inline bags_code lx_count_pixels(
    bags_target *t, lx_feature *f, json_object *stats) {
    json_object *of = lx_member(stats, f->name, json_type_object), *found[5];
    double count = 0;
    bool has_all = of != NULL;
    for (size_t k = 0; k < 5 && has_all; k++) {
        found[k] = lx_member(of, lx_stat_names[k], json_type_array);
        has_all = found[k] != NULL;
    }
    size_t size = has_all ? lx_flatten(found[2], NULL, 0) : 0;
    for (size_t k = 1; k < 5 && has_all; k++)
        has_all = lx_flatten(found[k], NULL, 0) == size;
    if (has_all && !f->lists) {
        f->lists = json_object_get(found[2]);
        FORMAT_TRY(lx_alloc_numbers(t, &f->episode, size));
        FORMAT_TRY(lx_alloc_numbers(t, &f->pixels, size));
    }
    if (!has_all || lx_flatten(f->lists, NULL, 0) != size ||
        lx_flatten(found[0], &count, 1) != 1 || !(count >= 1 && count < 1e15)) {
        f->lacks_pixels = true;
        return BAGS_OK;
    }
    lx_numbers one = f->episode;
    one.count = (uint64_t)count;
    lx_flatten(found[1], one.most, size);
    lx_flatten(found[2], one.mean, size);
    lx_flatten(found[3], one.least, size);
    lx_flatten(found[4], one.square, size);
    for (size_t i = 0; i < size; i++)
        one.square[i] *= one.square[i] * count;
    lx_merge(&f->pixels, &one, size);
    return BAGS_OK;
}

#endif /* BAGS_EXPORT_LEROBOT_H */
