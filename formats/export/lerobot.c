/*
 * lerobot.c - writes LeRobot datasets, version 3.0, in one pass. With json-c, and DuckDB's
 * library for Parquet (1.0 or later), at run time.
 *
 *     data/CHUNK/FILE.parquet           a row per frame
 *     videos/CAMERA/CHUNK/FILE.mp4      the videos of many episodes, joined (mp4_join.h)
 *     meta/episodes/CHUNK/FILE.parquet  a row per episode of the data file of this number
 *     meta/tasks.parquet                the texts of tasks
 *     meta/stats.json, meta/info.json   written last
 *
 * A datapoint is an episode. All of its sequences have an item per frame:
 *
 *     int, i64, u64, arrays[]   features; arrays of at most two dimensions, of one shape
 *     utf8[]                    text
 *     jpeg[], png[], webp[]     images: {bytes, path}
 *     mp4                       a camera
 *     timestamp                 seconds since the episode began, of a float type; without
 *                               the field, frame / fps
 *     tasks, or task            utf8 or utf8[]: one for all frames; one per frame; or, with
 *                               task_index, the texts of its numbers as they appear
 *     stats                     utf8: statistics as JSON, for meta/episodes
 *     episode_index, index, frame_index, task_index
 *                               numbered by the export; they must be numbers of that kind
 *
 * Metadata (`lerobot` in info.json, as the importer writes it) keeps names and shapes of
 * features, numbers of tasks, statistics, and other members of meta/info.json. The other
 * members of the dataset's info.json are the member `bags` of meta/info.json.
 *
 * Rejected: other fields; float16 and complex numbers; audio; episodes without frames; times
 * that contradict the rate, or the times of a video's frames.
 */
#include "lerobot.h"
#include "images.h"

/* ---- metadata ---- */

/* Read {"lerobot": {"info", "stats", "tasks"}}, as the importer writes it. */
static bags_code lx_read_metadata(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    if (!t->options.metadata.data)
        return BAGS_OK;
    l->metadata = lx_parse(t->options.metadata.data, t->options.metadata.size);
    if (!json_object_is_type(l->metadata, json_type_object))
        return bags_fail(t->err, BAGS_ERROR_CORRUPT, "%s: info.json: not a JSON object",
            bags_path_tail(bags_reader_path(t->reader)));
    json_object *lerobot = lx_member(l->metadata, "lerobot", json_type_object);
    l->info = lx_member(lerobot, "info", json_type_object);
    l->stats = lx_member(lerobot, "stats", json_type_object);
    l->known_tasks = lx_member(lerobot, "tasks", json_type_object);
    return BAGS_OK;
}

/* ---- fields ---- */

static bool lx_is_whole(const bags_target_field *field) {
    return field->form == BAGS_FORM_INTEGER ||
           (field->form == BAGS_FORM_ARRAY && !field->dims &&
               field->dtype >= BAGS_DTYPE_UINT8 && field->dtype <= BAGS_DTYPE_INT64);
}

/* The field is one of the features that the export makes. */
static bags_code lx_prepare_own(bags_target *t, bags_target_field *field, size_t own) {
    lx_state *l = (lx_state *)t->state;
    bags_target_field **places[] = {
        &l->time, &l->frame, &l->episode, &l->index, &l->task};
    bool is_real =
        field->form == BAGS_FORM_ARRAY && !field->dims &&
        (field->dtype == BAGS_DTYPE_FLOAT32 || field->dtype == BAGS_DTYPE_FLOAT64);
    bool fits = own == 0 ? is_real : lx_is_whole(field);
    if (!fits || field->sequence != (own != 2))
        return bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
            "%s of LeRobot is %s (this is %s%s): rename it, or leave it out, with "
            "--fields",
            lx_own[own],
            own == 0   ? "a float of seconds per frame"
            : own == 2 ? "a whole number per episode"
                       : "a whole number per frame",
            field->type, field->sequence ? "[]" : "");
    field->kind = (unsigned)LX_TIME + (unsigned)own;
    *places[own] = field;
    return BAGS_OK;
}

/* A sequence of numbers. */
static bags_code lx_prepare_numbers(bags_target *t, bags_target_field *field) {
    bool fits = dx_dtype(field->dtype) && field->dtype != BAGS_DTYPE_FLOAT16 &&
                field->dims <= 2;
    size_t size = 1;
    field->kind = LX_NUMBER;
    if (field->form == BAGS_FORM_INTEGER)
        return BAGS_OK;
    for (size_t i = 0; i < field->dims && fits; i++) {
        fits = field->shape[i] > 0 && field->shape[i] <= INT32_MAX / size;
        size *= fits ? (size_t)field->shape[i] : 1;
    }
    return fits ? BAGS_OK
                : bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
                      "LeRobot has numbers, and arrays of one shape, of up to 64 bits "
                      "(not float16) and two dimensions (this is %s[])",
                      field->type);
}

static bags_code lx_check_name(bags_target *t, bags_target_field *field) {
    size_t size = strlen(field->name);
    char *plain = (char *)bags_target_alloc(t, size + 2, 1);
    if (!plain)
        return BAGS_ERROR_MEMORY;
    bags_import_name(field->name, size, plain);
    if (strcmp(plain, field->name) != 0)
        return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
            "\"%.100s\" is not the name of a file on every system: rename it with "
            "--fields",
            field->name);
    for (size_t i = 0; i < sizeof lx_own / sizeof *lx_own; i++)
        if (dx_same_name(field->name, lx_own[i]) && strcmp(field->name, lx_own[i]) != 0)
            return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
                "differs only in case from LeRobot's feature %s: rename it with "
                "--fields",
                lx_own[i]);
    return dx_check_name(t, field);
}

static bags_code lx_prepare_field(bags_target *t, bags_target_field *field) {
    lx_state *l = (lx_state *)t->state;
    bool text = field->form == BAGS_FORM_TEXT;
    FORMAT_TRY(lx_check_name(t, field));
    for (size_t i = 0; i < sizeof lx_own / sizeof *lx_own; i++)
        if (!strcmp(field->name, lx_own[i]))
            return lx_prepare_own(t, field, i);
    bool is_tasks = !strcmp(field->name, "tasks") || !strcmp(field->name, "task");
    if (text && is_tasks) {
        if (l->tasks)
            return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
                "the field \"%.100s\" also has the tasks: choose one with --fields",
                l->tasks->name);
        l->tasks = field;
        field->kind = LX_TASKS;
        return BAGS_OK;
    }
    if (text && !field->sequence && !strcmp(field->name, "stats")) {
        l->statistics = field;
        field->kind = LX_STATS;
        return BAGS_OK;
    }
    field->kind = dx_is_image(field)              ? LX_IMAGE
                  : !strcmp(field->ending, "mp4") ? LX_VIDEO
                                                  : LX_TEXT;
    field->apart = field->kind == LX_VIDEO;
    if (field->sequence &&
        (field->form == BAGS_FORM_INTEGER || field->form == BAGS_FORM_ARRAY))
        return lx_prepare_numbers(t, field);
    if (field->sequence ? field->kind == LX_IMAGE || text : field->kind == LX_VIDEO)
        return BAGS_OK;
    return bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
        field->sequence || field->kind == LX_VIDEO
            ? "LeRobot has no feature for it (%s%s): choose other fields with --fields"
            : "a feature of LeRobot has a value per frame (this is one %s%s per "
              "episode): choose other fields with --fields",
        field->type, field->sequence ? "[]" : "");
}

static bags_code lx_add_feature(
    bags_target *t, const char *name, lx_kind kind, bags_target_field *field) {
    lx_state *l = (lx_state *)t->state;
    json_object *known = lx_member(l->info, "features", json_type_object);
    lx_feature *f = &l->features[l->feature_count];
    f->name = name;
    f->kind = kind;
    f->field = field;
    f->stored = lx_member(known, name, json_type_object);
    f->rank = (size_t)1 << 30;
    f->rank += l->feature_count++;
    size_t rank = 0;
    if (f->stored) {
        json_object_object_foreach(known, other, unused) {
            (void)unused;
            if (!strcmp(other, name))
                f->rank = rank;
            rank++;
        }
    }
    f->size = 1;
    for (size_t i = 0; field && i < field->dims; i++)
        f->size *= (size_t)field->shape[i];
    /* LeRobot reads shape [1] as numbers; a source may have lists. */
    f->is_list = field && field->dims == 1 && f->size == 1 &&
                 (!f->stored || lx_member(f->stored, "is_list", json_type_boolean));
    if (kind == LX_VIDEO) {
        f->video = (mp4_join_video *)bags_target_alloc(t, 1, sizeof *f->video);
        return f->video ? BAGS_OK : BAGS_ERROR_MEMORY;
    }
    if (!lx_has_numbers(f))
        return BAGS_OK;
    FORMAT_TRY(lx_alloc_numbers(t, &f->episode, f->size));
    return lx_alloc_numbers(t, &f->total, f->size);
}

static int lx_compare_ranks(const void *left, const void *right) {
    size_t a = ((const lx_feature *)left)->rank, b = ((const lx_feature *)right)->rank;
    return a < b ? -1 : a > b;
}

/* Add the features, in the order of the metadata. New features are sorted by name; the
 * features of LeRobot itself are last. */
static bags_code lx_add_features(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    bool has_frames = l->time || l->frame || l->index || l->task;
    l->features = (lx_feature *)bags_target_alloc(t, t->count + 5, sizeof *l->features);
    if (!l->features)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < t->count; i++) {
        lx_kind kind = (lx_kind)t->fields[i].kind;
        if (kind > LX_VIDEO)
            continue;
        has_frames = true;
        FORMAT_TRY(lx_add_feature(t, t->fields[i].name, kind, &t->fields[i]));
    }
    for (size_t i = 0; i < sizeof lx_own / sizeof *lx_own; i++)
        FORMAT_TRY(lx_add_feature(
            t, lx_own[i], (lx_kind)(LX_TIME + (int)i), i == 0 ? l->time : NULL));
    if (!has_frames)
        return bags_target_fail(t, BAGS_ERROR_TYPE,
            "no field is a sequence or mp4: an episode has no frames");
    qsort(l->features, l->feature_count, sizeof *l->features, lx_compare_ranks);
    return BAGS_OK;
}

/* ---- times, tasks ---- */

static const double *lx_times(const lx_state *l) {
    return (const double *)(const void *)l->time_list.buffer.data;
}

static const int64_t *lx_task_list(const lx_state *l) {
    return (const int64_t *)(const void *)l->task_list.buffer.data;
}

/* The time of each frame. */
static bags_code lx_set_times(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    l->time_list.size = 0;
    for (size_t i = 0; i < l->frame_count; i++) {
        double time = l->time ? lx_element(&l->time->values[i], 0) : (double)i / l->fps;
        FORMAT_TRY(bags_target_put(t, &l->time_list, &time, sizeof time));
        double since = i ? time - lx_times(l)[i - 1] - 1 / l->fps : time;
        if (!(fabs(since) < 0.5 / l->fps))
            return i ? bags_target_fail_value(t, l->time,
                           "frame %zu is at %.6f s, and the frame before it at %.6f s: "
                           "the rate is %.6g frames per second; state another with "
                           "--fps, or leave the field out",
                           i, time, lx_times(l)[i - 1], l->fps)
                     : bags_target_fail_value(t, l->time,
                           "the episode begins at %.6f s: times of LeRobot begin at 0; "
                           "rename the field, or leave it out, with --fields",
                           time);
    }
    return BAGS_OK;
}

static size_t lx_task_count(const lx_state *l) {
    return l->task_texts.size / sizeof(const char *);
}

static const char *lx_task_text(const lx_state *l, int64_t number) {
    return ((const char *const *)(const void *)l->task_texts.buffer.data)[number];
}

/* Add a text, as the next number. */
static bags_code lx_add_task(bags_target *t, const char *text) {
    lx_state *l = (lx_state *)t->state;
    const char *copy = bags_target_format(t, "%s", text);
    if (!copy)
        return BAGS_ERROR_MEMORY;
    json_object *number = json_object_new_int64((int64_t)lx_task_count(l));
    if (!number || json_object_object_add(l->tasks_by_text, copy, number))
        return bags_fail(t->err, BAGS_ERROR_MEMORY, "out of memory");
    return bags_target_put(t, &l->task_texts, &copy, sizeof copy);
}

/* The number of a text; a new one if it has none. NULL: no text. */
static bags_code lx_task_number(
    bags_target *t, const bags_value *text, int64_t *number) {
    lx_state *l = (lx_state *)t->state;
    json_object *found = NULL;
    size_t size = text ? text->size : 0;
    if (size &&
        (memchr(text->data, 0, size) || !bags_utf8_valid(text->data, size, NULL)))
        return bags_target_fail_value(t, l->tasks, "text with NUL, or not UTF-8");
    l->text.size = 0;
    FORMAT_TRY(bags_target_put(t, &l->text, size ? text->data : "", size));
    const char *key = (const char *)l->text.buffer.data;
    bool known = json_object_object_get_ex(l->tasks_by_text, key, &found);
    *number = known ? json_object_get_int64(found) : (int64_t)lx_task_count(l);
    return known ? BAGS_OK : lx_add_task(t, key);
}

/* With the field task_index, text i belongs to its i-th distinct number in the episode. */
static bags_code lx_set_indexed_tasks(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    size_t count = 0;
    l->seen.size = 0;
    for (size_t i = 0; i < l->frame_count; i++) {
        lx_seen one = {bags_target_bits(&l->task->values[i], 0), 0};
        const lx_seen *seen = (const lx_seen *)(const void *)l->seen.buffer.data;
        size_t k = 0;
        while (k < count && seen[k].stated != one.stated)
            k++;
        if (k < count) {
            one.number = seen[k].number;
        } else {
            if (count++ < l->tasks->length)
                FORMAT_TRY(lx_task_number(t, &l->tasks->values[k], &one.number));
            FORMAT_TRY(bags_target_put(t, &l->seen, &one, sizeof one));
        }
        FORMAT_TRY(bags_target_put(t, &l->task_list, &one.number, sizeof one.number));
    }
    return count == l->tasks->length
               ? BAGS_OK
               : bags_target_fail_value(t, l->tasks,
                     "%zu texts, but task_index has %zu numbers in this episode",
                     l->tasks->length, count);
}

/* The number of the task of each frame. */
static bags_code lx_set_tasks(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    size_t length = l->tasks ? l->tasks->length : 0;
    int64_t number = 0;
    l->task_list.size = 0;
    if (l->tasks && l->task)
        return lx_set_indexed_tasks(t);
    if (length > 1 && length != l->frame_count)
        return bags_target_fail_value(t, l->tasks,
            "%zu texts for %zu frames: LeRobot has one per frame; add a field "
            "task_index, or leave this one out",
            length, l->frame_count);
    for (size_t i = 0; i < l->frame_count; i++) {
        if (i == 0 || length > 1)
            FORMAT_TRY(
                lx_task_number(t, length ? &l->tasks->values[i] : NULL, &number));
        FORMAT_TRY(bags_target_put(t, &l->task_list, &number, sizeof number));
    }
    return BAGS_OK;
}

/* Check a field that counts frames: by one, from 0 or from any number. */
static bags_code lx_check_numbers(
    bags_target *t, const bags_target_field *field, bool from_0) {
    uint64_t first =
        field && field->length && !from_0 ? bags_target_bits(field->values, 0) : 0;
    for (size_t i = 0; field && i < field->length; i++)
        if (bags_target_bits(&field->values[i], 0) != first + i)
            return bags_target_fail_value(t, field,
                "frame %zu has the number %" PRId64 " (expected %" PRId64
                "): LeRobot numbers frames one by one; rename the field, or leave it "
                "out, with --fields",
                i, (int64_t)bags_target_bits(&field->values[i], 0),
                (int64_t)(first + i));
    return BAGS_OK;
}

/* ---- episodes ---- */

/* Set the number of frames: all sequences and videos have as many. */
static bags_code lx_count_frames(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    const bags_target_field *first = NULL;
    for (size_t i = 0; i < t->count; i++) {
        const bags_target_field *field = &t->fields[i];
        if (!field->sequence || field->kind == LX_TASKS)
            continue;
        if (first && field->length != first->length)
            return bags_target_fail_value(t, field,
                "%zu items, and \"%.100s\" has %zu: an episode of LeRobot has one per "
                "frame",
                field->length, first->name, first->length);
        first = first ? first : field;
    }
    l->frame_count = first ? first->length : 0;
    for (size_t i = 0; i < l->feature_count; i++) {
        lx_feature *f = &l->features[i];
        if (f->kind != LX_VIDEO)
            continue;
        FORMAT_TRY(mp4_join_read(t, f->field, f->video, l->fps));
        if (first && f->video->count != l->frame_count)
            return bags_target_fail_value(t, f->field,
                "%zu frames, and \"%.100s\" has %zu items", f->video->count,
                first->name, first->length);
        first = f->field;
        l->frame_count = f->video->count;
    }
    return l->frame_count
               ? BAGS_OK
               : bags_target_fail_value(t, first, "an episode without frames");
}

/* All images of a feature have one shape. */
static bags_code lx_check_shape(bags_target *t, lx_feature *f, size_t frame,
    uint64_t height, uint64_t width, uint64_t channels) {
    if (!height || !width)
        return bags_target_fail_value(
            t, f->field, "frame %zu: not an image with a size", frame);
    if (!f->height) {
        f->height = height;
        f->width = width;
        f->channels = channels;
    }
    return f->height == height && f->width == width && f->channels == channels
               ? BAGS_OK
               : bags_target_fail_value(t, f->field,
                     "frame %zu: %" PRIu64 " x %" PRIu64 " x %" PRIu64
                     ", and the first one is %" PRIu64 " x %" PRIu64 " x %" PRIu64
                     ": images of LeRobot have one shape",
                     frame, height, width, channels, f->height, f->width, f->channels);
}

static bags_code lx_check_image(bags_target *t, lx_feature *f, size_t frame) {
    static const unsigned char channels[] = {1, 0, 3, 3, 2, 0, 4};
    const bags_value *value = &f->field->values[frame];
    bags_view file = {(const unsigned char *)value->data, value->size};
    if (!strcmp(f->field->ending, "jpg")) {
        bags_view header = format_jpeg_frame(file);
        if (!header.size)
            return lx_check_shape(t, f, frame, 0, 0, 0);
        return lx_check_shape(t, f, frame, bags_load_bytes(header.data + 1, 2, true),
            bags_load_bytes(header.data + 3, 2, true), header.data[5]);
    }
    if (!strcmp(f->field->ending, "webp")) {
        format_webp webp;
        bool good = !format_webp_scan(file, &webp, NULL);
        return lx_check_shape(t, f, frame, good ? webp.height : 0,
            good ? webp.width : 0, webp.alpha ? 4 : 3);
    }
    if (file.size < 26 || memcmp(file.data, FORMAT_PNG_START, 8) != 0)
        return lx_check_shape(t, f, frame, 0, 0, 0);
    return lx_check_shape(t, f, frame, bags_load_bytes(file.data + 20, 4, true),
        bags_load_bytes(file.data + 16, 4, true),
        file.data[25] < 7 ? channels[file.data[25]] : 0);
}

/* Each frame of a video is at the time of its row. */
static bags_code lx_check_video(bags_target *t, lx_feature *f) {
    const lx_state *l = (const lx_state *)t->state;
    for (size_t i = 0; i < l->frame_count; i++) {
        double off = mp4_join_time(f->video, i) - lx_times(l)[i];
        if (!(fabs(off) < 0.5 / l->fps))
            return bags_target_fail_value(t, f->field,
                "frame %zu is at %.6f s, its row at %.6f s (%.6g frames per second)", i,
                mp4_join_time(f->video, i), lx_times(l)[i], l->fps);
    }
    return lx_check_shape(t, f, 0, f->video->height, f->video->width, 3);
}

static bags_code lx_check_episode(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    FORMAT_TRY(lx_count_frames(t));
    FORMAT_TRY(lx_check_numbers(t, l->frame, true));
    FORMAT_TRY(lx_check_numbers(t, l->index, false));
    FORMAT_TRY(lx_set_times(t));
    FORMAT_TRY(lx_set_tasks(t));
    for (size_t i = 0; i < l->feature_count; i++) {
        lx_feature *f = &l->features[i];
        if (f->kind == LX_VIDEO)
            FORMAT_TRY(lx_check_video(t, f));
        for (size_t k = 0; k < l->frame_count; k++) {
            const bags_value *value = f->field ? &f->field->values[k] : NULL;
            if (f->kind == LX_IMAGE)
                FORMAT_TRY(lx_check_image(t, f, k));
            if (f->kind == LX_TEXT && !bags_utf8_valid(value->data, value->size, NULL))
                return bags_target_fail_value(
                    t, f->field, "frame %zu: text that is not UTF-8", k);
        }
    }
    return BAGS_OK;
}

/* The number in a feature that the export makes. */
static int64_t lx_own_number(const lx_state *l, lx_kind kind, size_t frame) {
    uint64_t task = (uint64_t)lx_task_list(l)[frame];
    return (int64_t)(kind == LX_FRAME     ? frame
                     : kind == LX_EPISODE ? l->episodes
                     : kind == LX_INDEX   ? l->frames + frame
                                          : task);
}

static void lx_count_episode(lx_state *l) {
    for (size_t i = 0; i < l->feature_count; i++) {
        lx_feature *f = &l->features[i];
        f->episode.count = 0;
        for (size_t k = 0; k < l->frame_count; k++) {
            int64_t own = lx_own_number(l, f->kind, k);
            double number = f->kind == LX_TIME ? lx_times(l)[k] : (double)own;
            for (size_t j = 0; j < f->size && lx_has_numbers(f); j++)
                lx_count(&f->episode, j,
                    f->field ? lx_element(&f->field->values[k], j) : number);
            f->episode.count++;
        }
        if (lx_has_numbers(f))
            lx_merge(&f->total, &f->episode, f->size);
        else
            f->total.count += f->episode.count;
    }
}

/* "chunk-000/file-012" */
static void lx_file_name(char out[64], uint64_t number) {
    (void)snprintf(out, 64, "chunk-%03" PRIu64 "/file-%03" PRIu64, number / LX_CHUNK,
        number % LX_CHUNK);
}

static bags_code lx_put_videos(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    char name[64];
    for (size_t i = 0; i < l->feature_count; i++) {
        lx_feature *f = &l->features[i];
        mp4_join_video *v = f->video;
        if (!v)
            continue;
        bool is_full =
            v->at + v->size > l->video_limit ||
            (t->options.shard_length && v->videos == t->options.shard_length);
        if (v->is_open && (is_full || !mp4_join_fits(v))) {
            FORMAT_TRY(mp4_join_end(t, v));
            f->video_file++;
        }
        if (!v->is_open) {
            lx_file_name(name, f->video_file);
            char *path =
                bags_target_format(t, "%s/videos/%s/%s.mp4", t->path, f->name, name);
            FORMAT_TRY(path ? mp4_join_begin(t, v, path) : BAGS_ERROR_MEMORY);
        }
        f->from = (double)v->ticks / (double)v->form.scale;
        FORMAT_TRY(mp4_join_put(t, v));
        f->to = (double)v->ticks / (double)v->form.scale;
    }
    return BAGS_OK;
}

/* ---- meta/episodes ---- */

/* A DOUBLE: a number with an exponent is one. */
static bags_code lx_put_real(bags_target *t, bags_export_bytes *to, double number) {
    char text[64];
    if (isnan(number))
        return bags_target_put_text(t, to, "'nan'::DOUBLE");
    if (!isfinite(number))
        return bags_target_put_text(
            t, to, number < 0 ? "'-inf'::DOUBLE" : "'inf'::DOUBLE");
    (void)snprintf(text, sizeof text, "%.17e", number);
    for (char *c = text; *c; c++)
        *c = (char)(*c == ',' ? '.' : *c); /* the program's locale */
    return bags_target_put_text(t, to, text);
}

/* A statistic for SQL: lists of numbers; `whole` ones. False in *good if it is anything else,
 * or has another number of lists. */
static bags_code lx_put_stat(bags_target *t, bags_export_bytes *to, json_object *json,
    size_t lists, bool whole, bool *good) {
    static const char *const special[] = {"NaN", "Infinity", "-Infinity"};
    const double numbers[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
    if (!json)
        return bags_target_put_text(t, to, "NULL");
    if (lists) {
        *good = *good && json_object_is_type(json, json_type_array);
        size_t count = *good ? json_object_array_length(json) : 0;
        FORMAT_TRY(bags_target_put_text(t, to, "["));
        for (size_t i = 0; i < count && *good; i++) {
            FORMAT_TRY(bags_target_put_text(t, to, i ? ", " : ""));
            FORMAT_TRY(lx_put_stat(
                t, to, json_object_array_get_idx(json, i), lists - 1, whole, good));
        }
        return bags_target_put_text(t, to, "]");
    }
    for (size_t i = 0; i < 3 && json_object_is_type(json, json_type_string); i++)
        if (!strcmp(json_object_get_string(json), special[i]))
            return lx_put_real(t, to, numbers[i]);
    bool is_whole = json_object_is_type(json, json_type_int);
    *good =
        *good && (is_whole || (!whole && json_object_is_type(json, json_type_double)));
    return whole
               ? bags_target_put_text(t, to, *good ? json_object_get_string(json) : "0")
               : lx_put_real(t, to, json_object_get_double(json));
}

static bags_code lx_add_column(bags_target *t, const char *feature, const char *name,
    const lx_feature *of, size_t lists) {
    lx_state *l = (lx_state *)t->state;
    if (l->column_count % 64 == 0) {
        lx_stat *grown =
            (lx_stat *)bags_target_alloc(t, l->column_count + 64, sizeof *grown);
        if (!grown)
            return BAGS_ERROR_MEMORY;
        if (l->column_count)
            memcpy(grown, l->columns, l->column_count * sizeof *grown);
        l->columns = grown;
    }
    lx_stat *column = &l->columns[l->column_count++];
    column->feature = bags_target_format(t, "%s", feature);
    column->name = bags_target_format(t, "%s", name);
    column->of = of;
    column->lists = lists;
    return column->feature && column->name ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Add the columns of statistics: the field of the first episode states them; without the
 * field, they are computed. */
static bags_code lx_add_columns(bags_target *t, json_object *stats) {
    lx_state *l = (lx_state *)t->state;
    l->has_columns = true;
    if (stats) {
        json_object_object_foreach(stats, feature, of) {
            if (!json_object_is_type(of, json_type_object))
                continue;
            json_object_object_foreach(of, name, stat) {
                size_t lists = 0;
                for (json_object *at = stat;
                     json_object_is_type(at, json_type_array) && lists < LX_NESTED;
                     lists++)
                    at = json_object_array_get_idx(at, 0);
                FORMAT_TRY(lx_add_column(t, feature, name, NULL, lists));
            }
        }
    }
    for (size_t i = 0; i < l->feature_count && !stats; i++) {
        const lx_feature *f = &l->features[i];
        size_t dims = f->field && f->field->dims ? f->field->dims : 1;
        if (f->kind == LX_TEXT)
            continue;
        for (size_t k = 0; k < 5 && (k == 0 || lx_has_numbers(f)); k++)
            FORMAT_TRY(lx_add_column(t, f->name, lx_stat_names[k], f, k ? dims : 1));
    }
    return BAGS_OK;
}

static size_t lx_count_members(json_object *stats) {
    size_t count = 0;
    json_object_object_foreach(stats, feature, of) {
        (void)feature;
        count += json_object_is_type(of, json_type_object)
                     ? (size_t)json_object_object_length(of)
                     : 0;
    }
    return count;
}

/* The statistics of an episode, in SQL. */
static bags_code lx_put_stats(bags_target *t, json_object *stats) {
    lx_state *l = (lx_state *)t->state;
    size_t given = 0;
    for (size_t i = 0; i < l->column_count; i++) {
        const lx_stat *column = &l->columns[i];
        json_object *of = lx_member(stats, column->feature, json_type_object);
        json_object *stat = NULL;
        bool good = true;
        FORMAT_TRY(bags_target_put_text(t, &l->rows, ", "));
        if (column->of) {
            size_t k = 0;
            while (strcmp(lx_stat_names[k], column->name) != 0)
                k++;
            stat = lx_stat_json(column->of, &column->of->episode, k, 0, 0);
            bags_code code =
                lx_put_stat(t, &l->rows, stat, column->lists, k == 0, &good);
            json_object_put(stat);
            FORMAT_TRY(code);
            continue;
        }
        good = of && json_object_object_get_ex(of, column->name, &stat);
        given++;
        bool whole = !strcmp(column->name, "count");
        FORMAT_TRY(lx_put_stat(t, &l->rows, stat, column->lists, whole, &good));
        if (!good)
            return bags_target_fail_value(t, l->statistics,
                "%.100s of %.100s is missing, or not lists of numbers like in the "
                "first episode",
                column->name, column->feature);
    }
    if (stats && lx_count_members(stats) != given)
        return bags_target_fail_value(
            t, l->statistics, "it has other statistics than the first episode");
    return BAGS_OK;
}

/* The texts of the episode, as they appear. */
static bags_code lx_put_task_texts(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    const int64_t *list = lx_task_list(l);
    l->seen.size = 0;
    FORMAT_TRY(bags_target_put_text(t, &l->rows, ", ["));
    for (size_t i = 0, count = 0; i < l->frame_count; i++) {
        const lx_seen one = {0, list[i]};
        const lx_seen *seen = (const lx_seen *)(const void *)l->seen.buffer.data;
        size_t k = 0;
        while (k < count && seen[k].number != one.number)
            k++;
        if (k < count)
            continue;
        FORMAT_TRY(bags_target_put(t, &l->seen, &one, sizeof one));
        FORMAT_TRY(bags_target_put_text(t, &l->rows, count++ ? ", " : ""));
        FORMAT_TRY(dx_put_quoted(t, &l->rows, lx_task_text(l, list[i]), '\''));
    }
    return bags_target_put_text(t, &l->rows, "]");
}

/* Append the row of the episode. */
static bags_code lx_put_episode(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    json_object *stats = NULL;
    char text[300];
    if (l->statistics) {
        const bags_value *value = l->statistics->values;
        stats = lx_parse(value->data, value->size);
        if (!json_object_is_type(stats, json_type_object)) {
            json_object_put(stats);
            return bags_target_fail_value(t, l->statistics, "not a JSON object");
        }
    }
    (void)snprintf(text, sizeof text,
        "(%" PRIu64 ", %zu, %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64,
        l->episodes, l->frame_count, t->shard / LX_CHUNK, t->shard % LX_CHUNK,
        l->frames, l->frames + l->frame_count);
    bags_code code = bags_target_put_text(t, &l->rows, text);
    if (!code)
        code = lx_put_task_texts(t);
    for (size_t i = 0; i < l->feature_count && !code; i++) {
        const lx_feature *f = &l->features[i];
        if (!f->video)
            continue;
        (void)snprintf(text, sizeof text, ", %" PRIu64 ", %" PRIu64 ", ",
            f->video_file / LX_CHUNK, f->video_file % LX_CHUNK);
        code = bags_target_put_text(t, &l->rows, text);
        if (!code)
            code = lx_put_real(t, &l->rows, f->from);
        if (!code)
            code = bags_target_put_text(t, &l->rows, ", ");
        if (!code)
            code = lx_put_real(t, &l->rows, f->to);
    }
    if (!code && !l->has_columns)
        code = lx_add_columns(t, stats);
    for (size_t i = 0; i < l->feature_count && !code; i++)
        if (l->features[i].kind == LX_IMAGE || l->features[i].kind == LX_VIDEO)
            code = lx_count_pixels(t, &l->features[i], stats);
    if (!code)
        code = lx_put_stats(t, stats);
    json_object_put(stats);
    (void)snprintf(text, sizeof text, ", %" PRIu64 ", %" PRIu64 ")",
        t->shard / LX_CHUNK, t->shard % LX_CHUNK);
    if (!code)
        code = bags_target_put_text(t, &l->rows, text);
    if (!code)
        code = bags_target_put(t, &l->row_ends, &l->rows.size, sizeof l->rows.size);
    return code;
}

/* Write all of the episode that was read but its rows. */
static bags_code lx_begin_episode(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    FORMAT_TRY(lx_check_episode(t));
    lx_count_episode(l);
    FORMAT_TRY(lx_put_videos(t));
    FORMAT_TRY(lx_put_episode(t));
    l->frame_at = 0;
    return BAGS_OK;
}

/* Create the table of episodes. */
static bags_code lx_make_table(bags_target *t) {
    static const char *const parts[] = {"chunk_index\" BIGINT", "file_index\" BIGINT",
        "from_timestamp\" DOUBLE", "to_timestamp\" DOUBLE"};
    lx_state *l = (lx_state *)t->state;
    bags_export_bytes *q = &l->text;
    q->size = 0;
    l->has_table = true;
    FORMAT_TRY(bags_target_put_text(t, q,
        "CREATE TABLE bags_episodes (episode_index BIGINT, length BIGINT, "
        "\"data/chunk_index\" BIGINT, \"data/file_index\" BIGINT, dataset_from_index "
        "BIGINT, dataset_to_index BIGINT, tasks VARCHAR[]"));
    for (size_t i = 0; i < 4 * l->feature_count; i++) {
        const lx_feature *f = &l->features[i / 4];
        char *name = f->video
                         ? bags_target_format(t, "videos/%s/%s", f->name, parts[i % 4])
                         : NULL;
        if (!f->video)
            continue;
        if (!name)
            return BAGS_ERROR_MEMORY;
        FORMAT_TRY(bags_target_put_text(t, q, ", \""));
        FORMAT_TRY(
            bags_target_put_text(t, q, name)); /* names have no quotes: lx_check_name */
    }
    for (size_t i = 0; i < l->column_count; i++) {
        const lx_stat *column = &l->columns[i];
        char *name =
            bags_target_format(t, "stats/%s/%s", column->feature, column->name);
        FORMAT_TRY(name ? bags_target_put_text(t, q, ", ") : BAGS_ERROR_MEMORY);
        FORMAT_TRY(dx_put_quoted(t, q, name, '"'));
        FORMAT_TRY(bags_target_put_text(
            t, q, strcmp(column->name, "count") ? " DOUBLE" : " BIGINT"));
        for (size_t k = 0; k < column->lists; k++)
            FORMAT_TRY(bags_target_put_text(t, q, "[]"));
    }
    FORMAT_TRY(bags_target_put_text(t, q,
        ", \"meta/episodes/chunk_index\" BIGINT, \"meta/episodes/file_index\" "
        "BIGINT)"));
    return dx_query(t, &l->session, (const char *)q->buffer.data);
}

/* Write the episodes of a file of rows. */
static bags_code lx_write_episodes(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    const size_t *ends = (const size_t *)(const void *)l->row_ends.buffer.data;
    size_t count = l->row_ends.size / sizeof *ends, start = 0;
    char name[64];
    if (!l->has_table)
        FORMAT_TRY(lx_make_table(t));
    for (size_t i = 0; i < count; i++) {
        l->text.size = i % 64 ? l->text.size : 0;
        FORMAT_TRY(bags_target_put_text(
            t, &l->text, i % 64 ? ", " : "INSERT INTO bags_episodes VALUES "));
        FORMAT_TRY(
            bags_target_put(t, &l->text, l->rows.buffer.data + start, ends[i] - start));
        start = ends[i];
        if (i % 64 == 63 || i + 1 == count)
            FORMAT_TRY(dx_query(t, &l->session, (const char *)l->text.buffer.data));
    }
    l->rows.size = l->row_ends.size = 0;
    lx_file_name(name, t->shard);
    FORMAT_TRY(
        dx_copy(t, &l->session, "SELECT * FROM bags_episodes ORDER BY episode_index",
            bags_target_format(t, "%s/meta/episodes/%s.parquet", t->path, name),
            "FORMAT parquet"));
    return dx_query(t, &l->session, "DELETE FROM bags_episodes");
}

/* ---- rows ---- */

static void lx_bind(void *info) {
    bags_target *t = (bags_target *)dx_bind_target(info);
    const lx_state *l = (const lx_state *)t->state;
    const duck_library *call = &l->session.call;
    for (size_t i = 0; i < l->feature_count; i++) {
        const lx_feature *f = &l->features[i];
        if (f->video)
            continue;
        bags_target_field field = *(f->field ? f->field : t->fields);
        field.dims = f->is_list ? 0 : field.dims;
        void *type = f->field ? dx_type(call, &field, 0)
                              : call->create_logical_type(
                                    f->kind == LX_TIME ? DUCK_FLOAT : DUCK_BIGINT);
        call->bind_add_result_column(info, f->name, type);
        call->destroy_logical_type(&type);
    }
}

/* Put a frame into row `index` of a chunk. Returns its bytes, or 0 if out of memory. */
static uint64_t lx_put_frame(
    const lx_state *l, void *chunk, uint64_t index, size_t frame) {
    const duck_library *call = &l->session.call;
    uint64_t column = 0, bytes = 1;
    for (size_t i = 0; i < l->feature_count; i++) {
        const lx_feature *f = &l->features[i];
        if (f->video)
            continue;
        void *vector = call->data_chunk_get_vector(chunk, column++);
        if (f->field) {
            bags_value value = f->field->values[frame];
            value.dims = f->is_list ? 0 : value.dims;
            if (!dx_put_item(call, vector, index, f->field, &value))
                return 0;
            bytes += value.size + 8;
        } else if (f->kind == LX_TIME) {
            ((float *)call->vector_get_data(vector))[index] = (float)lx_times(l)[frame];
        } else {
            ((int64_t *)call->vector_get_data(vector))[index] =
                lx_own_number(l, f->kind, frame);
        }
    }
    return bytes + 8 * column;
}

/* Go to the next episode of the file. *more is false at its end. */
static bags_code lx_next_episode(bags_target *t, bool *more) {
    lx_state *l = (lx_state *)t->state;
    l->episodes++;
    l->frames += l->frame_count;
    l->frame_at = l->frame_count = 0;
    FORMAT_TRY(bags_target_next(t, more));
    return *more ? lx_begin_episode(t) : BAGS_OK;
}

static void lx_fill(void *info, void *chunk) {
    bags_target *t = (bags_target *)dx_fill_target(info);
    lx_state *l = (lx_state *)t->state;
    dx_session *session = &l->session;
    uint64_t rows = 0, most = session->call.vector_size(), bytes = 0;
    bool more = true;
    while (rows < most && bytes < DX_BYTES && !session->failed && l->frame_count) {
        uint64_t size = lx_put_frame(l, chunk, rows++, l->frame_at++);
        bytes += size;
        if (!size)
            session->failed = bags_fail(t->err, BAGS_ERROR_MEMORY, "out of memory");
        else if (l->frame_at == l->frame_count)
            session->failed = lx_next_episode(t, &more);
    }
    if (session->failed)
        session->call.function_set_error(info, "the dataset cannot be read");
    session->call.data_chunk_set_size(chunk, session->failed ? 0 : rows);
}

/* A file of rows. */
static bags_code lx_shard(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    uint64_t bytes = 0;
    bool more = false;
    char name[64], group[64];
    l->session.failed = BAGS_OK;
    FORMAT_TRY(bags_target_next(t, &more));
    FORMAT_TRY(more ? lx_begin_episode(t) : BAGS_OK);
    for (size_t i = 0; i < l->feature_count; i++)
        if (l->features[i].field && !l->features[i].video)
            bytes += l->features[i].field->values->size + 8;
    lx_file_name(name, t->shard);
    (void)snprintf(group, sizeof group, "FORMAT parquet, ROW_GROUP_SIZE %" PRIu64,
        dx_group(bytes));
    FORMAT_TRY(dx_copy(t, &l->session, "SELECT * FROM bags_rows()",
        bags_target_format(t, "%s/data/%s.parquet", t->path, name), group));
    return lx_write_episodes(t);
}

/* ---- meta ---- */

/* A statistic that is stored agrees with the computed one, if it is not of images. */
static bool lx_agrees(json_object *stored, json_object *computed) {
    if (json_object_is_type(computed, json_type_array)) {
        size_t count = json_object_array_length(computed);
        bool same = json_object_is_type(stored, json_type_array) &&
                    json_object_array_length(stored) == count;
        for (size_t i = 0; i < count && same; i++)
            same = lx_agrees(json_object_array_get_idx(stored, i),
                json_object_array_get_idx(computed, i));
        return same;
    }
    double a = json_object_get_double(stored), b = json_object_get_double(computed);
    if (!isfinite(a) || !isfinite(b))
        return isnan(a) ? isnan(b) : isinf(a) && isinf(b) && (a > 0) == (b > 0);
    return fabs(a - b) <= 1e-4 * (fabs(a) + fabs(b) + 1e-4);
}

/* Get the statistics of a feature from the metadata, if the number of frames is the same
 * and the values agree. Otherwise from the values. */
static json_object *lx_feature_stats(const lx_state *l, const lx_feature *f) {
    json_object *total = lx_member(l->info, "total_frames", json_type_int);
    json_object *stored = lx_member(l->stats, f->name, json_type_object), *other;
    json_object *computed = json_object_new_object();
    bool keep = stored && total && json_object_get_uint64(total) == l->frames;
    for (size_t k = 0; computed && k < 5 && (k == 0 || lx_has_numbers(f)); k++) {
        json_object *one = lx_stat_json(f, &f->total, k, 0, 0);
        if (k > 0 && keep &&
            json_object_object_get_ex(stored, lx_stat_names[k], &other))
            keep = lx_agrees(other, one);
        json_object_object_add(computed, lx_stat_names[k], one);
    }
    for (size_t k = 1; k < 5 && f->lists && !f->lacks_pixels; k++) {
        size_t at = 0;
        json_object_object_add(
            computed, lx_stat_names[k], lx_nest(f->lists, &f->pixels, k, &at));
    }
    if (!keep)
        return computed;
    json_object_put(computed);
    return json_object_get(stored);
}

static bags_code lx_write_json(bags_target *t, const char *name, json_object *json) {
    const char *text =
        json ? json_object_to_json_string_ext(
                   json, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_NOSLASHESCAPE)
             : NULL;
    char *path = bags_target_format(t, "%s/meta/%s", t->path, name);
    if (!text || !path)
        return bags_fail(t->err, BAGS_ERROR_MEMORY, "out of memory");
    FORMAT_TRY(bags_target_file_open(t, path));
    FORMAT_TRY(bags_target_write(t, text, strlen(text)));
    FORMAT_TRY(bags_target_write(t, "\n", 1));
    return bags_target_file_close(t);
}

static bags_code lx_write_stats(bags_target *t) {
    const lx_state *l = (const lx_state *)t->state;
    json_object *stats = json_object_new_object();
    for (size_t i = 0; stats && i < l->feature_count; i++)
        if (l->features[i].kind != LX_TEXT)
            json_object_object_add(
                stats, l->features[i].name, lx_feature_stats(l, &l->features[i]));
    bags_code code = lx_write_json(t, "stats.json", stats);
    json_object_put(stats);
    return code;
}

/* pandas reads the text as the index of its table, as LeRobot expects. */
static bags_code lx_write_tasks(bags_target *t) {
    static const char pandas[] =
        "FORMAT parquet, KV_METADATA {pandas: '{\"index_columns\": [\"task\"], "
        "\"column_indexes\": "
        "[], \"columns\": [{\"name\": \"task_index\", \"field_name\": \"task_index\", "
        "\"pandas_type\": \"int64\", \"numpy_type\": \"int64\", \"metadata\": null}, "
        "{\"name\": \"task\", \"field_name\": \"task\", \"pandas_type\": \"unicode\", "
        "\"numpy_type\": \"object\", \"metadata\": null}], \"pandas_version\": "
        "\"2.0.0\"}'}";
    lx_state *l = (lx_state *)t->state;
    char number[40];
    size_t count = lx_task_count(l);
    FORMAT_TRY(dx_query(
        t, &l->session, "CREATE TABLE bags_tasks (task_index BIGINT, task VARCHAR)"));
    for (size_t i = 0; i < count; i++) {
        l->text.size = i % 64 ? l->text.size : 0;
        (void)snprintf(number, sizeof number, "(%zu, ", i);
        FORMAT_TRY(bags_target_put_text(
            t, &l->text, i % 64 ? ", " : "INSERT INTO bags_tasks VALUES "));
        FORMAT_TRY(bags_target_put_text(t, &l->text, number));
        FORMAT_TRY(dx_put_quoted(t, &l->text, lx_task_text(l, (int64_t)i), '\''));
        FORMAT_TRY(bags_target_put_text(t, &l->text, ")"));
        if (i % 64 == 63 || i + 1 == count)
            FORMAT_TRY(dx_query(t, &l->session, (const char *)l->text.buffer.data));
    }
    return dx_copy(t, &l->session, "SELECT * FROM bags_tasks ORDER BY task_index",
        bags_target_format(t, "%s/meta/tasks.parquet", t->path), pandas);
}

static json_object *lx_integers(const uint64_t *numbers, size_t count) {
    json_object *list = json_object_new_array();
    for (size_t i = 0; list && i < count; i++)
        json_object_array_add(list, json_object_new_int64((int64_t)numbers[i]));
    return list;
}

/* True if a stored feature has this dtype, and all these lengths among its shape. */
static bool lx_same_feature(
    json_object *stored, const char *dtype, json_object *shape) {
    json_object *of = lx_member(stored, "dtype", json_type_string);
    json_object *lengths = lx_member(stored, "shape", json_type_array);
    bool is_image = !strcmp(dtype, "video") || !strcmp(dtype, "image");
    size_t count = json_object_array_length(shape);
    if (!of || !lengths || strcmp(json_object_get_string(of), dtype) != 0 ||
        json_object_array_length(lengths) != count)
        return false;
    for (size_t i = 0; i < count; i++) {
        int64_t one = json_object_get_int64(json_object_array_get_idx(shape, i));
        size_t k = is_image ? 0 : i, end = is_image ? count : i + 1;
        while (k < end &&
               json_object_get_int64(json_object_array_get_idx(lengths, k)) != one)
            k++;
        if (k == end)
            return false;
    }
    return true;
}

static json_object *lx_image_names(void) {
    static const char *const names[] = {"height", "width", "channels"};
    json_object *list = json_object_new_array();
    for (size_t i = 0; list && i < 3; i++)
        json_object_array_add(list, json_object_new_string(names[i]));
    return list;
}

/* Facts about the videos of a camera. */
static json_object *lx_video_info(const lx_state *l, const lx_feature *f) {
    static const char *const codecs[][2] = {{"avc1", "h264"}, {"avc3", "h264"},
        {"hvc1", "hevc"}, {"hev1", "hevc"}, {"av01", "av1"}, {"vp09", "vp9"},
        {"mp4v", "mpeg4"}};
    json_object *info = json_object_new_object();
    const char *codec = f->video->codec;
    for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++)
        if (!strcmp(f->video->codec, codecs[i][0]))
            codec = codecs[i][1];
    json_object_object_add(
        info, "video.height", json_object_new_int64((int64_t)f->height));
    json_object_object_add(
        info, "video.width", json_object_new_int64((int64_t)f->width));
    json_object_object_add(info, "video.codec", json_object_new_string(codec));
    json_object_object_add(info, "video.channels", json_object_new_int64(3));
    json_object_object_add(info, "video.fps", lx_json_real(l->fps));
    json_object_object_add(info, "video.is_depth_map", json_object_new_boolean(0));
    json_object_object_add(info, "has_audio", json_object_new_boolean(0));
    return info;
}

static json_object *lx_describe(const lx_state *l, const lx_feature *f) {
    const uint64_t image[] = {f->height, f->width, f->channels}, one = 1;
    bool has_shape = f->field && f->field->dims;
    const char *dtype = f->kind == LX_VIDEO   ? "video"
                        : f->kind == LX_IMAGE ? "image"
                        : f->kind == LX_TEXT  ? "string"
                        : !f->field           ? f->kind == LX_TIME ? "float32" : "int64"
                        : f->field->form == BAGS_FORM_ARRAY
                            ? bags_dtype_name(f->field->dtype)
                        : f->field->may_exceed_int64 ? "uint64"
                                                     : "int64";
    bool is_image = f->kind == LX_VIDEO || f->kind == LX_IMAGE;
    json_object *shape = is_image    ? lx_integers(image, 3)
                         : has_shape ? lx_integers(f->field->shape, f->field->dims)
                                     : lx_integers(&one, 1);
    if (f->stored && lx_same_feature(f->stored, dtype, shape)) {
        json_object_put(shape);
        return json_object_get(f->stored);
    }
    json_object *out = json_object_new_object();
    json_object_object_add(out, "dtype", json_object_new_string(dtype));
    json_object_object_add(out, "shape", shape);
    json_object_object_add(out, "names", is_image ? lx_image_names() : NULL);
    if (f->kind == LX_VIDEO)
        json_object_object_add(out, "info", lx_video_info(l, f));
    if (f->is_list)
        json_object_object_add(out, "is_list", json_object_new_boolean(1));
    return out;
}

/* Set members of info.json. Other members of the metadata stay. */
static void lx_set_info(const bags_target *t, json_object *info) {
    const lx_state *l = (const lx_state *)t->state;
    char text[60];
    const struct {
        const char *name;
        uint64_t number;
    } numbers[] = {{"total_episodes", l->episodes}, {"total_frames", l->frames},
        {"total_tasks", lx_task_count(l)}, {"chunks_size", LX_CHUNK},
        {"data_files_size_in_mb", (t->options.shard_size + 1048575) >> 20},
        {"video_files_size_in_mb", (l->video_limit + 1048575) >> 20}};
    json_object *stored = NULL, *features = json_object_new_object();
    bool has_videos = false;
    json_object_object_add(info, "codebase_version", json_object_new_string("v3.0"));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_object_add(
            info, numbers[i].name, json_object_new_int64((int64_t)numbers[i].number));
    json_object_object_get_ex(info, "fps", &stored);
    if (!stored || fabs(json_object_get_double(stored) - l->fps) > 0)
        json_object_object_add(info, "fps",
            !(fabs(l->fps - floor(l->fps)) > 0) ? json_object_new_int64((int64_t)l->fps)
                                                : lx_json_real(l->fps));
    if (!json_object_object_get_ex(info, "robot_type", &stored))
        json_object_object_add(info, "robot_type", NULL);
    (void)snprintf(text, sizeof text, "0:%" PRIu64, l->episodes);
    json_object *splits = json_object_new_object();
    json_object_object_add(splits, "train", json_object_new_string(text));
    json_object_object_add(info, "splits", splits);
    json_object_object_add(info, "data_path",
        json_object_new_string(
            "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"));
    for (size_t i = 0; i < l->feature_count; i++) {
        const lx_feature *f = &l->features[i];
        has_videos = has_videos || f->video;
        json_object_object_add(features, f->name, lx_describe(l, f));
    }
    json_object_object_add(info, "video_path",
        has_videos
            ? json_object_new_string("videos/{video_key}/chunk-{chunk_index:03d}/"
                                     "file-{file_index:03d}.mp4")
            : NULL);
    json_object_object_add(info, "features", features);
    json_object *others = NULL;
    if (l->metadata)
        (void)json_object_deep_copy(l->metadata, &others, NULL);
    if (others) /* json-c ends the program for NULL */
        json_object_object_del(others, "lerobot");
    if (others && json_object_object_length(others) > 0)
        json_object_object_add(info, "bags", json_object_get(others));
    json_object_put(others);
    /* Of version 2.1. */
    json_object_object_del(info, "total_chunks");
    json_object_object_del(info, "total_videos");
}

static bags_code lx_write_info(bags_target *t) {
    const lx_state *l = (const lx_state *)t->state;
    json_object *info = NULL;
    if (l->info)
        (void)json_object_deep_copy(l->info, &info, NULL);
    else
        info = json_object_new_object();
    if (info)
        lx_set_info(t, info);
    bags_code code = lx_write_json(t, "info.json", info);
    json_object_put(info);
    return code;
}

static bags_code lx_finish(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    for (size_t i = 0; i < l->feature_count; i++)
        if (l->features[i].video)
            FORMAT_TRY(mp4_join_end(t, l->features[i].video));
    FORMAT_TRY(lx_write_tasks(t));
    FORMAT_TRY(lx_write_stats(t));
    FORMAT_TRY(lx_write_info(t));
    return bags_target_check_files(t, t->report.files);
}

/* ---- open ---- */

/* A rate that was measured: the whole number that it is, but for rounding. */
static double lx_round(double rate) {
    double whole = floor(rate + 0.5);
    return fabs(rate - whole) < 2e-4 * rate ? whole : rate;
}

/* Find the rate: an option, the metadata, or the first episode: its timestamps, its video. */
static bags_code lx_find_rate(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    json_object *stored = NULL;
    l->fps = t->options.fps;
    if (l->info && json_object_object_get_ex(l->info, "fps", &stored) && !(l->fps > 0))
        l->fps = json_object_get_double(stored);
    FORMAT_TRY(bags_target_first(t));
    size_t count = l->time ? l->time->length : 0;
    if (!(l->fps > 0) && count > 1) {
        double time = lx_element(&l->time->values[count - 1], 0) -
                      lx_element(&l->time->values[0], 0);
        l->fps = lx_round((double)(count - 1) / time);
        if (!(l->fps > 0 && l->fps < 1e6))
            return bags_target_fail_value(t, l->time,
                "no rate: the last of %zu frames is %.6f s after the first; state it "
                "with --fps",
                count, time);
    }
    for (size_t i = 0; i < l->feature_count && !(l->fps > 0); i++) {
        const lx_feature *f = &l->features[i];
        if (!f->video)
            continue;
        FORMAT_TRY(mp4_join_read(t, f->field, f->video, 1));
        if (f->video->count > 1)
            l->fps = lx_round((double)(f->video->count - 1) /
                              mp4_join_time(f->video, f->video->count - 1));
    }
    return l->fps > 0 && l->fps <= 1e6
               ? BAGS_OK
               : bags_target_fail(t, BAGS_ERROR_ARGUMENT,
                     "the frames per second are not known (there are no metadata, no "
                     "field timestamp and no video): state them with --fps");
}

/* Begin with the tasks of the metadata, if they are numbered from 0 without gaps. */
static bags_code lx_open_tasks(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    size_t count =
        l->known_tasks ? (size_t)json_object_object_length(l->known_tasks) : 0;
    const char **texts = (const char **)bags_target_alloc(t, count + 1, sizeof *texts);
    l->tasks_by_text = json_object_new_object();
    if (!texts || !l->tasks_by_text)
        return bags_fail(t->err, BAGS_ERROR_MEMORY, "out of memory");
    if (count) {
        json_object_object_foreach(l->known_tasks, text, number) {
            int64_t at = json_object_get_int64(number);
            if (at >= 0 && (uint64_t)at < count)
                texts[at] = text;
        }
    }
    for (size_t i = 0; i < count; i++)
        if (!texts[i])
            count = 0;
    for (size_t i = 0; i < count; i++)
        FORMAT_TRY(lx_add_task(t, texts[i]));
    return BAGS_OK;
}

static bags_code lx_open(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    if (t->options.shard_stop > 1)
        return bags_target_fail(t, BAGS_ERROR_ARGUMENT,
            "one process writes a LeRobot dataset: its rows are numbered from the "
            "first "
            "to the last");
    l->video_limit = t->options.shard_size ? t->options.shard_size : LX_VIDEOS;
    if (!t->options.shard_size)
        t->options.shard_size = LX_DATA;
    FORMAT_TRY(lx_read_metadata(t));
    for (size_t i = 0; i < t->count; i++)
        FORMAT_TRY(lx_prepare_field(t, &t->fields[i]));
    FORMAT_TRY(lx_add_features(t));
    FORMAT_TRY(lx_open_tasks(t));
    if (l->task && !l->tasks)
        return bags_target_fail_field(t, l->task, BAGS_ERROR_FIELD,
            "numbers of tasks without their texts: add the field tasks, or leave this "
            "one out");
    if (t->length == 0)
        return bags_target_fail(
            t, BAGS_ERROR_VALUE, "no datapoints: LeRobot has at least one episode");
    FORMAT_TRY(lx_find_rate(t));
    return dx_connect(t, &l->session, "LeRobot and Parquet", lx_bind, lx_fill);
}

static void lx_close(bags_target *t) {
    lx_state *l = (lx_state *)t->state;
    for (size_t i = 0; i < l->feature_count; i++)
        json_object_put(l->features[i].lists);
    json_object_put(l->metadata);
    json_object_put(l->tasks_by_text);
    duck_close(&l->session.call, &l->session.database, &l->session.connection);
}

const bags_exporter bags_export_lerobot = {"lerobot", "", true, false, true,
    sizeof(lx_state), lx_open, lx_shard, lx_finish, lx_close};
