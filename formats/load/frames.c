/*
 * frames.c - frames of episodes: a datapoint is an episode, and each item of its clock
 * is a frame. Frames are counted when a loader is opened, found by number, and loaded
 * with a window of each field.
 *
 * The only table holds the number of frames before each episode:
 *
 *     position of an epoch -> number of a frame    bags_order
 *     number               -> place of an episode  a search in `before`
 *     place                -> episode              the episodes' order: selections
 *
 * With BAGS_PAD_DROP, an episode's frames are a range of the clock's items, since times
 * do not decrease. The table holds only the range's length; its start is searched for
 * again.
 *
 * Each thread reads and checks all of an episode's times when it first uses them. If
 * the field is mapped, a bit records the check, and later searches read only a few
 * items.
 */
#include "ring.h"

#include "files.h"
#include "order.h"
#include "random.h"
#include "text.h"

#include <math.h>

#define FRAMES_BLOCK 1024     /* episodes counted at once */
#define FRAMES_HEAD 16384     /* first bytes of a video, usually with its tables */
#define FRAMES_MOST (1 << 20) /* most items in a window */

/* ---- item times ---- */

/* A field of an episode, together with its items' times. */
typedef struct frames_series {
    const bags_reader *reader;
    const char *name; /* the field's name */
    const loader_times *times;
    size_t field; /* the field of times */
    uint64_t episode, count;
    bags_row *row;
    bool whole; /* the row holds all times */
} frames_series;

FORMAT_COLD static bags_code frames_fail_times(
    const frames_series *s, uint64_t item, bags_error *err) {
    return format_fail_at(
        s->reader, s->times->name, s->episode, item, BAGS_ERROR_VALUE, err);
}

/* Get an item's time. */
static bags_code frames_time(
    const frames_series *s, uint64_t item, double *out, bags_error *err) {
    bags_view blob;
    if (!s->times->name) {
        *out = (double)item / s->times->rate;
        return BAGS_OK;
    }
    if (s->whole)
        blob = bags_row_bytes(s->row, 0, (size_t)item);
    else
        FORMAT_TRY(bags_reader_get_blob(
            s->reader, s->episode, s->field, item, s->row, &blob, err));
    if (blob.size != sizeof *out) {
        bags_fail(err, BAGS_ERROR_VALUE, "not a float64 (%" PRIu64 " bytes)",
            (uint64_t)blob.size);
        return frames_fail_times(s, item, err);
    }
    uint64_t bits = bags_load_bytes(blob.data, 8, false);
    memcpy(out, &bits, sizeof bits);
    return BAGS_OK;
}

/* Read all times and check them. */
static bags_code frames_read_times(frames_series *s, bags_error *err) {
    const bags_select all = bags_select_all(s->field);
    char time[40], last[40];
    double before = 0, now;
    FORMAT_TRY(bags_reader_get(s->reader, s->episode, &all, 1, s->row, err));
    uint64_t has = bags_row_length(s->row, 0);
    if (has != s->count) {
        bags_fail(err, BAGS_ERROR_VALUE,
            "%" PRIu64 " items, but field \"%.100s\" has %" PRIu64, has, s->name,
            s->count);
        return frames_fail_times(s, UINT64_MAX, err);
    }
    s->whole = true;
    for (uint64_t i = 0; i < has; i++, before = now) {
        FORMAT_TRY(frames_time(s, i, &now, err));
        if (isfinite(now) && (i == 0 || now >= before))
            continue;
        format_digits(time, now, false);
        format_digits(last, before, false);
        if (isfinite(now))
            bags_fail(err, BAGS_ERROR_VALUE, "times must not decrease (%s after %s)",
                time, last);
        else
            bags_fail(err, BAGS_ERROR_VALUE, "not a time (%s)",
                isnan(now) ? "NaN" : "infinite");
        return frames_fail_times(s, i, err);
    }
    return BAGS_OK;
}

/* Prepare access to the times of an episode's items. */
static bags_code frames_open_series(
    loader_worker *w, const loader_frame *f, frames_series *s, bags_error *err) {
    s->reader = w->loader->readers[f->dataset];
    s->episode = f->episode;
    s->row = &w->times;
    s->whole = false;
    if (!s->times->name)
        return BAGS_OK;
    uint64_t bit = f->place * w->loader->frames->bits + s->times->bit;
    unsigned char *byte = w->checked ? w->checked + bit / 8 : NULL;
    unsigned char mask = (unsigned char)(1 << bit % 8);
    if (byte && (*byte & mask))
        return BAGS_OK;
    FORMAT_TRY(frames_read_times(s, err));
    bool mapped = s->count && !bags_row_owns(s->row, bags_row_bytes(s->row, 0, 0).data);
    if (byte && mapped)
        *byte |= mask;
    return BAGS_OK;
}

/* Prepare access to the times of the clock's items. */
static bags_code frames_open_clock(
    loader_worker *w, const loader_frame *f, frames_series *s, bags_error *err) {
    const loader_frames *frames = w->loader->frames;
    s->name = frames->given.clock;
    s->times = &frames->times;
    s->field = frames->clocks[f->dataset].times;
    s->count = f->count;
    return frames_open_series(w, f, s, err);
}

bags_mp4_reader *bagi_frames_video(loader_worker *w, const loader_column *c,
    size_t dataset, uint64_t episode, bags_error *err) {
    const bags_loader_videos *videos = w->loader->options.videos;
    const bags_reader *reader = w->loader->readers[dataset];
    bags_mp4_reader *video = NULL;
    if (!w->videos)
        w->videos = videos->open(NULL, err);
    if (w->videos)
        video =
            videos->get(w->videos, reader, episode, c->sources[dataset].field, 0, err);
    if (!video && !strstr(err->message, "datapoint "))
        format_fail_at(reader, c->given.name, episode, UINT64_MAX, err->code, err);
    return video;
}

/* Count a column's items in an episode. */
static bags_code frames_items(loader_worker *w, const loader_column *c,
    const loader_frame *f, uint64_t *count, bags_error *err) {
    if (!c->video)
        return bags_reader_items(w->loader->readers[f->dataset], f->episode,
            c->sources[f->dataset].field, &w->times, count, err);
    const bags_mp4_reader *video = bagi_frames_video(w, c, f->dataset, f->episode, err);
    if (!video)
        return err->code;
    *count = w->loader->options.videos->info(video)->frames;
    return BAGS_OK;
}

/* Prepare access to the times of a column's items, and get the times of the first and
 * last item if there are any. */
static bags_code frames_open_column(loader_worker *w, const loader_column *c,
    const loader_frame *f, frames_series *s, double ends[2], bags_error *err) {
    const loader_source *source = &c->sources[f->dataset];
    s->name = c->given.name;
    s->times = &c->times;
    s->field = source->times;
    FORMAT_TRY(frames_items(w, c, f, &s->count, err));
    FORMAT_TRY(frames_open_series(w, f, s, err));
    if (s->count == 0)
        return BAGS_OK;
    FORMAT_TRY(frames_time(s, 0, &ends[0], err));
    return frames_time(s, s->count - 1, &ends[1], err);
}

/* Find the first item at or after a time, or the number of items. The search starts at
 * *item and doubles its steps. */
static bags_code frames_search(
    const frames_series *s, double time, uint64_t *item, bags_error *err) {
    uint64_t low = 0, high = s->count, probe = *item, step = 1;
    while (low < high) {
        double at;
        probe = probe < low ? low : probe < high ? probe : high - 1;
        FORMAT_TRY(frames_time(s, probe, &at, err));
        if (at < time)
            low = probe + 1;
        else
            high = probe;
        bool bounded = low > 0 && high < s->count;
        if (bounded || step > s->count)
            probe = low + (high - low) / 2;
        else
            probe = at < time ? probe + step : probe < step ? 0 : probe - step;
        step *= 2;
    }
    *item = low;
    return BAGS_OK;
}

/* Find the item nearest to a time (the first of equally near ones), and that item's
 * time. The search starts at *item. */
static bags_code frames_nearest(
    const frames_series *s, double time, uint64_t *item, double *at, bags_error *err) {
    double after = 0, before = 0, same = 0;
    FORMAT_TRY(frames_search(s, time, item, err));
    uint64_t next = *item;
    if (next < s->count)
        FORMAT_TRY(frames_time(s, next, &after, err));
    if (next > 0)
        FORMAT_TRY(frames_time(s, next - 1, &before, err));
    *at = after;
    if (next == 0 || (next < s->count && after - time < time - before))
        return BAGS_OK;
    *at = before;
    *item = next - 1;
    if (next > 1)
        FORMAT_TRY(frames_time(s, next - 2, &same, err));
    return next > 1 && same >= before ? frames_search(s, before, item, err) : BAGS_OK;
}

/* ---- windows ---- */

FORMAT_COLD static bags_code frames_fail_far(const frames_series *s,
    const loader_frame *f, double now, double time, double tolerance,
    const double *nearest, bags_error *err) {
    char texts[4][40];
    format_digits(texts[0], now, false);
    format_digits(texts[1], time, false);
    if (!nearest)
        bags_fail(err, BAGS_ERROR_VALUE,
            "frame %" PRIu64 ", at %s s: no item near %s s (the episode has no items)",
            f->number, texts[0], texts[1]);
    else {
        format_digits(texts[2], tolerance, false);
        format_digits(texts[3], *nearest, false);
        bags_fail(err, BAGS_ERROR_VALUE,
            "frame %" PRIu64
            ", at %s s: no item within %s s of %s s (the nearest is at "
            "%s s)",
            f->number, texts[0], texts[2], texts[1], texts[3]);
    }
    return format_fail_at(
        s->reader, s->name, s->episode, UINT64_MAX, BAGS_ERROR_VALUE, err);
}

/* Choose the items of a window by seconds around the time `now`. `outside` holds
 * `items` bools. */
static bags_code frames_choose_near(loader_worker *w, const loader_column *c,
    const loader_frame *f, double now, uint64_t *items, bool *outside,
    bags_error *err) {
    const bags_load_field *g = &c->given;
    frames_series s;
    double ends[2] = {0, 0}, at = 0;
    uint64_t item = f->number; /* likely to be near the result */
    FORMAT_TRY(frames_open_column(w, c, f, &s, ends, err));
    for (size_t k = 0; k < c->items; k++) {
        double time = now + g->seconds[k];
        if (s.count == 0)
            return frames_fail_far(&s, f, now, time, 0, NULL, err);
        bool early = ends[0] - time > g->tolerance;
        bool late = time - ends[1] > g->tolerance;
        outside[k] = early || late;
        items[k] = late ? s.count - 1 : 0;
        if (outside[k])
            continue;
        FORMAT_TRY(frames_nearest(&s, time, &item, &at, err));
        items[k] = item;
        if (g->has_tolerance && fabs(at - time) > g->tolerance)
            return frames_fail_far(&s, f, now, time, g->tolerance, &at, err);
    }
    return BAGS_OK;
}

/* Choose the items of a window by offsets. */
static void frames_choose_at(
    const loader_column *c, const loader_frame *f, uint64_t *items, bool *outside) {
    for (size_t k = 0; k < c->items; k++) {
        int64_t offset = c->given.offsets ? c->given.offsets[k] : 0;
        uint64_t back = 0 - (uint64_t)offset, left = f->count - 1 - f->number;
        bool early = offset < 0 && back > f->number;
        bool late = offset > 0 && (uint64_t)offset > left;
        items[k] = early ? 0 : late ? f->count - 1 : f->number + (uint64_t)offset;
        outside[k] = early || late;
    }
}

/* ---- an episode's frames ---- */

/* Find the first frame whose time plus `seconds` is at most the tolerance before `edge`
 * or, with `after`, more than the tolerance after `edge`. */
static bags_code frames_bound(const frames_series *clock, double seconds, double edge,
    double tolerance, bool after, uint64_t *out, bags_error *err) {
    uint64_t low = 0, high = clock->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        double time;
        FORMAT_TRY(frames_time(clock, middle, &time, err));
        time += seconds;
        if (after ? time - edge > tolerance : !(edge - time > tolerance))
            high = middle;
        else
            low = middle + 1;
    }
    *out = low;
    return BAGS_OK;
}

/* Narrow a range of frames to those whose windows by seconds lie inside the field. */
static bags_code frames_keep_near(loader_worker *w, const loader_column *c,
    const loader_frame *f, uint64_t *start, uint64_t *stop, bags_error *err) {
    const bags_load_field *g = &c->given;
    frames_series s, clock;
    double ends[2] = {0, 0}, least = g->seconds[0], most = least;
    uint64_t first, past;
    FORMAT_TRY(frames_open_column(w, c, f, &s, ends, err));
    if (s.count == 0) {
        *stop = 0;
        return BAGS_OK;
    }
    for (size_t k = 1; k < c->items; k++) {
        least = g->seconds[k] < least ? g->seconds[k] : least;
        most = g->seconds[k] > most ? g->seconds[k] : most;
    }
    FORMAT_TRY(frames_open_clock(w, f, &clock, err));
    FORMAT_TRY(frames_bound(&clock, least, ends[0], g->tolerance, false, &first, err));
    FORMAT_TRY(frames_bound(&clock, most, ends[1], g->tolerance, true, &past, err));
    *start = first > *start ? first : *start;
    *stop = past < *stop ? past : *stop;
    return BAGS_OK;
}

/* Narrow a range of frames to those whose windows by offsets lie inside the field. */
static void frames_keep_at(
    const loader_column *c, const loader_frame *f, uint64_t *start, uint64_t *stop) {
    for (size_t k = 0; k < c->items; k++) {
        int64_t offset = c->given.offsets[k];
        uint64_t back = 0 - (uint64_t)offset, ahead = (uint64_t)offset;
        uint64_t past = ahead < f->count ? f->count - ahead : 0;
        if (offset < 0 && back > *start)
            *start = back;
        if (offset > 0 && past < *stop)
            *stop = past;
    }
}

/* Find which items of the clock are frames: start <= number < stop. Does not use
 * f->number. */
static bags_code frames_range(loader_worker *w, const loader_frame *f, uint64_t *start,
    uint64_t *stop, bags_error *err) {
    const bags_loader *l = w->loader;
    *start = 0;
    *stop = f->count;
    for (size_t i = 0; i < l->field_count && l->frames->given.pad && f->count; i++) {
        const loader_column *c = &l->columns[i];
        if (c->given.offsets)
            frames_keep_at(c, f, start, stop);
        if (c->given.seconds)
            FORMAT_TRY(frames_keep_near(w, c, f, start, stop, err));
    }
    if (*stop < *start)
        *stop = *start;
    return BAGS_OK;
}

uint64_t bagi_frames_length(const loader_frames *frames, size_t dataset) {
    const uint64_t *starts = format_order_tables_of(&frames->episodes).starts;
    return frames->before[starts[dataset + 1]] - frames->before[starts[dataset]];
}

size_t bagi_frames_checked_size(const loader_frames *frames) {
    return (size_t)frames->episodes.length * frames->bits / 8 + 1;
}

/* Find a frame's episode without reading. out->number counts from the episode's first
 * frame, and out->count is its number of frames. */
static bags_code frames_locate(const loader_frames *frames, const bags_pick *pick,
    loader_frame *out, bags_error *err) {
    const uint64_t *starts = format_order_tables_of(&frames->episodes).starts;
    uint64_t number = frames->before[starts[pick->dataset]] + pick->index;
    bags_pick episode;
    out->place = format_last_at_most(frames->before, sizeof *frames->before,
        (size_t)frames->episodes.length, number);
    FORMAT_TRY(bags_order_get(&frames->episodes, 0, out->place, 1, &episode, err));
    out->dataset = episode.dataset;
    out->episode = episode.index;
    out->number = number - frames->before[out->place];
    out->count = frames->before[out->place + 1] - frames->before[out->place];
    return BAGS_OK;
}

bags_code bagi_frames_find(
    loader_worker *w, const bags_pick *pick, loader_frame *out, bags_error *err) {
    const loader_frames *frames = w->loader->frames;
    uint64_t start = 0, stop;
    FORMAT_TRY(frames_locate(frames, pick, out, err));
    if (frames->given.pad == BAGS_PAD_EDGE) /* every item is a frame */
        return BAGS_OK;
    FORMAT_TRY(bags_reader_items(w->loader->readers[out->dataset], out->episode,
        frames->clocks[out->dataset].field, &w->times, &out->count, err));
    FORMAT_TRY(frames_range(w, out, &start, &stop, err));
    out->number += start;
    return BAGS_OK;
}

/* ---- samples ---- */

FORMAT_COLD static bags_code frames_fail_items(const bags_reader *reader,
    const char *name, const loader_frame *f, uint64_t has, const char *other,
    uint64_t needs, bags_error *err) {
    bags_fail(err, BAGS_ERROR_VALUE,
        "%" PRIu64 " items, but field \"%.100s\" has %" PRIu64, has, other, needs);
    return format_fail_at(reader, name, f->episode, UINT64_MAX, BAGS_ERROR_VALUE, err);
}

/* Check that a video has as many frames as the clock has items. (Other fields were
 * checked when the loader was opened.) */
static bags_code frames_check_video(
    loader_worker *w, const loader_column *c, const loader_frame *f, bags_error *err) {
    const bags_loader *l = w->loader;
    uint64_t has = 0;
    if (!c->video)
        return BAGS_OK;
    FORMAT_TRY(frames_items(w, c, f, &has, err));
    return has == f->count ? BAGS_OK
                           : frames_fail_items(l->readers[f->dataset], c->given.name, f,
                                 has, l->frames->given.clock, f->count, err);
}

/* Choose the items of all windows; stores them in w->chosen and w->outside. */
static bags_code frames_choose(
    loader_worker *w, const loader_frame *f, bags_error *err) {
    const bags_loader *l = w->loader;
    size_t at = 0;
    frames_series clock;
    double now = 0;
    if (l->frames->timed) {
        FORMAT_TRY(frames_open_clock(w, f, &clock, err));
        FORMAT_TRY(frames_time(&clock, f->number, &now, err));
    }
    for (size_t i = 0; i < l->field_count; i++) {
        const loader_column *c = &l->columns[i];
        if (c->given.seconds)
            FORMAT_TRY(
                frames_choose_near(w, c, f, now, w->chosen + at, w->outside + at, err));
        else {
            FORMAT_TRY(frames_check_video(w, c, f, err));
            frames_choose_at(c, f, w->chosen + at, w->outside + at);
        }
        at += c->items;
    }
    return BAGS_OK;
}

/* Select the chosen items. Repeated items are selected once or, with `all`, every
 * time. */
static size_t frames_select(
    const loader_worker *w, size_t dataset, bool all, bags_select *out) {
    const bags_loader *l = w->loader;
    const uint64_t *items = w->chosen;
    size_t count = 0;
    for (size_t i = 0; i < l->field_count; i++) {
        const loader_column *c = &l->columns[i];
        size_t field = c->sources[dataset].field;
        if (!c->items)
            out[count++] = bags_select_all(field);
        for (size_t k = 0; k < c->items && !c->video; k++)
            if (all || k == 0 || items[k] != items[k - 1])
                out[count++] = bags_select_slice(field, items[k], items[k] + 1, 1);
        items += c->items;
    }
    return count;
}

/* Announce the data needed to choose the samples' items: refs and times of their
 * episodes. */
static void frames_announce_times(
    loader_worker *w, size_t dataset, const uint64_t *indices, size_t count) {
    const bags_loader *l = w->loader;
    size_t fields = 0;
    w->selects[fields++] =
        l->frames->times.name
            ? bags_select_all(l->frames->clocks[dataset].times)
            : bags_select_slice(l->frames->clocks[dataset].field, 0, 0, 1);
    for (size_t i = 0; i < l->field_count; i++)
        if (l->columns[i].times.name)
            w->selects[fields++] =
                bags_select_all(l->columns[i].sources[dataset].times);
    (void)bags_reader_prefetch(
        l->readers[dataset], indices, count, w->selects, fields, &w->times, NULL);
}

/* Announce the first bytes of these samples' videos, once per episode, so that all
 * videos are opened in the same round trips. */
static void frames_announce_heads(
    loader_worker *w, const bags_pick *picks, size_t count, size_t dataset) {
    const bags_loader *l = w->loader;
    size_t size = sizeof(uint64_t) + sizeof(bags_select) + sizeof(bags_extent);
    size_t used = 0;
    bags_buffer list = bags_buffer_of(l->options.allocator);
    bags_error unused;
    bool videos = false;
    for (size_t i = 0; i < l->field_count; i++)
        videos = videos || l->columns[i].video;
    if (!videos || !w->checked || count > SIZE_MAX / size ||
        bags_buffer_reserve(&list, count * size, NULL))
        return;
    bags_select *selects = (bags_select *)(void *)list.data;
    bags_extent *parts = (bags_extent *)(void *)(selects + count);
    uint64_t *indices = (uint64_t *)(void *)(parts + count);
    for (size_t i = 0; i < count; i++) {
        loader_frame f;
        if (picks[i].dataset != dataset ||
            frames_locate(l->frames, &picks[i], &f, &unused))
            continue;
        uint64_t bit = f.place * l->frames->bits + l->frames->opened;
        unsigned char mask = (unsigned char)(1 << bit % 8);
        if (w->checked[bit / 8] & mask)
            continue;
        w->checked[bit / 8] |= mask;
        parts[used].offset = 0;
        parts[used].size = FRAMES_HEAD;
        indices[used++] = f.episode;
    }
    for (size_t i = 0; i < l->field_count && used; i++) {
        const loader_column *c = &l->columns[i];
        for (size_t k = 0; k < used && c->video; k++)
            selects[k] = bags_select_all(c->sources[dataset].field);
        if (c->video)
            (void)bags_reader_prefetch_parts(
                l->readers[dataset], indices, used, selects, parts, &w->times, NULL);
    }
    bags_buffer_free(&list);
}

/* Announce the parts of a column's videos that these samples' frames need. Videos not
 * used recently are opened first. `chosen` is the column's position in w->chosen. */
static void frames_announce_videos(loader_worker *w, const bags_pick *picks,
    size_t count, size_t dataset, const loader_column *c, const uint64_t *chosen) {
    const bags_loader *l = w->loader;
    size_t field = c->sources[dataset].field, most = count * c->items, used = 0;
    size_t size = sizeof(uint64_t) + sizeof(bags_select) + sizeof(bags_extent);
    bags_buffer list = bags_buffer_of(l->options.allocator);
    bags_error unused;
    if (most > SIZE_MAX / 2 / size || bags_buffer_reserve(&list, most * size, NULL))
        return;
    bags_select *selects = (bags_select *)(void *)list.data;
    bags_extent *parts = (bags_extent *)(void *)(selects + most);
    uint64_t *indices = (uint64_t *)(void *)(parts + most);
    for (size_t i = 0; i < count; i++) {
        loader_frame f;
        if (picks[i].dataset != dataset ||
            bagi_frames_find(w, &picks[i], &f, &unused) ||
            frames_choose(w, &f, &unused))
            continue;
        const bags_mp4_reader *video =
            bagi_frames_video(w, c, f.dataset, f.episode, &unused);
        for (size_t k = 0; k < c->items && video; k++) {
            bags_extent part = l->options.videos->part(video, chosen[k]);
            bool again = used > 0 && indices[used - 1] == f.episode &&
                         parts[used - 1].offset == part.offset;
            if (part.size == 0 || again)
                continue;
            indices[used] = f.episode;
            selects[used] = bags_select_all(field);
            parts[used++] = part;
        }
    }
    if (used)
        (void)bags_reader_prefetch_parts(
            l->readers[dataset], indices, used, selects, parts, &w->times, NULL);
    bags_buffer_free(&list);
}

/* Announce the samples of a dataset. `selects` holds `each` entries for every pick. */
static void frames_announce(loader_worker *w, const bags_pick *picks, size_t count,
    size_t dataset, uint64_t *indices, bags_select *selects, size_t each) {
    const bags_loader *l = w->loader;
    const bags_reader *reader = l->readers[dataset];
    size_t used = 0;
    loader_frame f;
    bags_error unused;
    for (size_t i = 0; i < count; i++)
        if (picks[i].dataset == dataset &&
            !frames_locate(l->frames, &picks[i], &f, &unused))
            indices[used++] = f.episode;
    if (used)
        frames_announce_times(w, dataset, indices, used);
    if (l->options.videos && l->options.videos->part)
        frames_announce_heads(w, picks, count, dataset);
    used = 0;
    for (size_t i = 0; i < count; i++) {
        if (picks[i].dataset != dataset ||
            bagi_frames_find(w, &picks[i], &f, &unused) ||
            frames_choose(w, &f, &unused))
            continue;
        (void)frames_select(w, dataset, true, selects + used * each);
        indices[used++] = f.episode;
    }
    if (used && each)
        (void)bags_reader_prefetch_each(
            reader, indices, used, selects, each, &w->row, NULL);
    const uint64_t *chosen = w->chosen;
    for (size_t i = 0; i < l->field_count; i++) {
        const loader_column *c = &l->columns[i];
        if (c->video && l->options.videos->part)
            frames_announce_videos(w, picks, count, dataset, c, chosen);
        chosen += c->items;
    }
}

void bagi_frames_announce(loader_worker *w, const bags_pick *picks, size_t count) {
    const bags_loader *l = w->loader;
    size_t each = l->frames->items, size;
    for (size_t i = 0; i < l->field_count; i++) {
        const loader_column *c = &l->columns[i];
        each += !c->items;
        each -= c->video ? c->items : 0;
    }
    size = each * sizeof(bags_select) + sizeof(uint64_t);
    if (count > SIZE_MAX / 2 / size ||
        bags_buffer_reserve(&w->announced, count * size, NULL) ||
        bags_buffer_reserve(&w->indices, count * sizeof(uint64_t), NULL))
        return;
    for (size_t d = 0; d < l->count; d++)
        frames_announce(w, picks, count, d, (uint64_t *)(void *)w->indices.data,
            (bags_select *)(void *)w->announced.data, each);
}

/* Append a video frame. */
static bags_code frames_append_video(loader_worker *w, const loader_column *c,
    loader_part *p, const loader_frame *f, const bags_load_item *item,
    bags_error *err) {
    const bags_loader_videos *videos = w->loader->options.videos;
    bags_mp4_reader *video = bagi_frames_video(w, c, f->dataset, f->episode, err);
    if (!video)
        return err->code;
    const bags_mp4_info *info = videos->info(video);
    const uint64_t shape[] = {info->height, info->width, 3};
    uint64_t found = 0;
    size_t size;
    bags_image staged;
    bags_value value;
    bags_code code = BAGS_OK;
    memset(&value, 0, sizeof value);
    if (bagi_loader_is_for_device(w, c, video, item->item, &staged)) {
        w->frame = &staged;
        code = bagi_loader_load_value(w, c, p, item, &value, err);
        w->frame = NULL;
        return code;
    }
    if (!bags_array_size(BAGS_DTYPE_UINT8, 3, shape, &size))
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "image too large for the address space");
    FORMAT_TRY(bags_buffer_reserve(&w->value, size, err));
    code = videos->read(
        video, item->item, item->item + 1, 1, w->value.data, size, &found, err);
    if (!code && found != 1)
        code = bags_fail(err, BAGS_ERROR_CORRUPT, "the frame is missing");
    if (code)
        return format_fail_at(
            item->reader, c->given.name, f->episode, item->item, code, err);
    value = bags_array(BAGS_DTYPE_UINT8, 3, shape, w->value.data);
    return bagi_loader_load_value(w, c, p, item, &value, err);
}

/* Append a column's window. Its items start at slot *place of the row. A repeated item
 * is copied, unless a GPU makes the tensor later. */
static bags_code frames_append(loader_worker *w, const loader_column *c, loader_part *p,
    const loader_frame *f, bags_load_item *item, const uint64_t *items, size_t *place,
    bags_error *err) {
    for (size_t k = 0; k < c->items; k++) {
        bool again = k > 0 && items[k] == items[k - 1];
        item->item = items[k];
        *place += !c->video && !again;
        if (c->video)
            memset(&item->blob, 0, sizeof item->blob);
        if (!again || c->form != LOADER_FORM_STACKED || c->on_device) {
            FORMAT_TRY(c->video
                           ? frames_append_video(w, c, p, f, item, err)
                           : bagi_loader_load_item(w, c, p, item, *place - 1, 0, err));
            continue;
        }
        FORMAT_TRY(loader_part_reserve(&p->data, p->used.size, c->item_size, err));
        unsigned char *to = p->data.data + p->used.size;
        if (c->item_size)
            memcpy(to, to - c->item_size, c->item_size);
        p->used.size += c->item_size;
        p->used.items++;
        FORMAT_TRY(bagi_loader_append_matrix(w, c, p, err));
    }
    return BAGS_OK;
}

/* Append a window's mask. Memory was already reserved for all samples. */
static void frames_mask(
    const loader_column *c, loader_part *mask, const bool *outside) {
    memcpy(mask->data.data + mask->used.size, outside, c->items * sizeof *outside);
    mask->used.size += c->items;
    mask->used.items += c->items;
}

bags_code bagi_frames_load(loader_worker *w, loader_slot *s, const loader_frame *f,
    uint64_t random, bags_error *err) {
    const bags_loader *l = w->loader;
    const uint64_t *items = w->chosen;
    size_t place = 0;
    bags_load_item item;
    memset(&item, 0, sizeof item);
    item.reader = l->readers[f->dataset];
    item.pick.dataset = f->dataset;
    item.pick.index = f->episode;
    FORMAT_TRY(frames_choose(w, f, err));
    FORMAT_TRY(bags_reader_get(item.reader, f->episode, w->selects,
        frames_select(w, f->dataset, false, w->selects), &w->row, err));
    for (size_t i = 0; i < l->field_count; i++) {
        const loader_column *c = &l->columns[i];
        item.random = c->salt ? format_key(random, c->salt) : random;
        item.item = 0;
        if (c->items)
            FORMAT_TRY(frames_append(w, c, &s->parts[i], f, &item, items, &place, err));
        else
            FORMAT_TRY(
                bagi_loader_load_item(w, c, &s->parts[i], &item, place++, 0, err));
        if (c->mask)
            frames_mask(c, &s->parts[c->mask], w->outside + (items - w->chosen));
        items += c->items;
    }
    return BAGS_OK;
}

/* ---- opening ---- */

/* Find a field's field of times. */
static bags_code frames_find_times(bags_loader *l, const char *field,
    loader_times *times, loader_source *sources, bags_error *err) {
    const char *given = times->name;
    for (size_t d = 0; d < l->count && given; d++) {
        const bags_reader *reader = l->readers[d];
        size_t count;
        FORMAT_TRY(bags_reader_field(reader, given, &sources[d].times, err));
        const bags_field *found = bags_reader_fields(reader, &count) + sources[d].times;
        const bags_type *type = bags_reader_type(reader, sources[d].times);
        bags_view dtype = bags_type_argument(type, 0);
        if (!type->sequence || !bags_view_is(type->name, "array") || type->count != 1 ||
            bags_dtype_parse((const char *)dtype.data, dtype.size, NULL) !=
                BAGS_DTYPE_FLOAT64)
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: field \"%.200s\": of type %.80s; the times of field \"%.100s\" "
                "must be array(float64)[]",
                bags_path_tail(bags_reader_path(reader)), given, found->type, field);
        if (d == 0)
            times->name = found->name; /* this name lives as long as the reader */
    }
    if (given)
        times->bit = l->frames->bits++;
    return BAGS_OK;
}

bags_code bagi_frames_start(bags_loader *l, bags_error *err) {
    loader_frames *frames = l->frames;
    bags_frames_options *o = &frames->given;
    const format_rule rules[] = {
        {!o->clock, "without a clock"},
        {o->pad > BAGS_PAD_DROP, "no such pad"},
        {o->times && loader_is_set(o->rate),
            "times and rate of the clock are mutually exclusive"},
        {loader_is_set(o->rate) && !(o->rate > 0 && isfinite(o->rate)),
            "the rate of the clock must be above 0, and finite"},
    };
    FORMAT_TRY(FORMAT_CHECK(rules, "frames: ", err));
    frames->clocks =
        (loader_source *)bagi_loader_allocate(l, l->count, sizeof *frames->clocks, err);
    if (!frames->clocks)
        return BAGS_ERROR_MEMORY;
    for (size_t d = 0; d < l->count; d++) {
        size_t *field = &frames->clocks[d].field, count;
        FORMAT_TRY(bags_reader_field(l->readers[d], o->clock, field, err));
        if (!bags_reader_type(l->readers[d], *field)->sequence)
            return bags_fail(err, BAGS_ERROR_TYPE,
                "%s: field \"%.200s\": not a sequence; the items of the clock are the "
                "frames",
                bags_path_tail(bags_reader_path(l->readers[d])), o->clock);
        if (d == 0)
            o->clock = bags_reader_fields(l->readers[0], &count)[*field].name;
    }
    frames->times.name = o->times;
    frames->times.rate = o->rate;
    frames->timed = o->times != NULL;
    return frames_find_times(l, o->clock, &frames->times, frames->clocks, err);
}

static bags_code frames_check_field(
    const bags_loader *l, const loader_column *c, bags_error *err) {
    const bags_load_field *g = &c->given;
    bool rated = loader_is_set(g->rate), times = g->times || rated;
    bool is_clock = l->frames && !strcmp(g->name, l->frames->given.clock);
    bool clock_timed =
        l->frames && (l->frames->times.name || l->frames->times.rate > 0);
    const format_rule rules[] = {
        {!l->frames && (g->offsets || g->offset_count || g->seconds ||
                           g->second_count || times || g->has_tolerance),
            "offsets, seconds, times, rate and tolerance need frames"},
        {!g->offsets != !g->offset_count,
            "an empty window: offsets and offset_count must be set together"},
        {!g->seconds != !g->second_count,
            "an empty window: seconds and second_count must be set together"},
        {g->offsets && g->seconds, "offsets and seconds are mutually exclusive"},
        {(g->offsets || g->seconds) && !c->sequence && !c->video,
            "offsets and seconds need a sequence"},
        {g->offset_count > FRAMES_MOST || g->second_count > FRAMES_MOST,
            "window too large (at most 2^20 items)"},
        {is_clock && times,
            "times and rate of the clock belong in bags_frames_options"},
        {(times || g->has_tolerance) && !g->seconds,
            "times, rate and tolerance need seconds"},
        {g->seconds && !times && !is_clock,
            "seconds need the times of its items: a field of times, or a rate"},
        {g->times && rated, "times and rate are mutually exclusive"},
        {rated && !(g->rate > 0 && isfinite(g->rate)),
            "the rate must be above 0, and finite"},
        {!g->has_tolerance && loader_is_set(g->tolerance),
            "tolerance without has_tolerance"},
        {!(g->tolerance >= 0 && isfinite(g->tolerance)),
            "the tolerance must be at least 0, and finite"},
        {g->seconds && !clock_timed,
            "seconds need the times of the clock: its field of times, or its rate"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].broken)
            return bagi_loader_fail_field(c, BAGS_ERROR_ARGUMENT, rules[i].what, err);
    for (size_t i = 0; i < g->second_count; i++)
        if (!isfinite(g->seconds[i]))
            return bagi_loader_fail_field(
                c, BAGS_ERROR_ARGUMENT, "seconds must be finite", err);
    return BAGS_OK;
}

/* Copy a list. NULL: out of memory. */
static const void *frames_copy(
    bags_loader *l, const void *list, size_t count, size_t size, bags_error *err) {
    void *copy = bagi_loader_allocate(l, count, size, err);
    if (copy)
        memcpy(copy, list, count * size);
    return copy;
}

static uint64_t frames_hash_text(uint64_t hash, const char *text) {
    for (; text && *text; text++)
        hash = format_mix(hash ^ (unsigned char)*text) + FORMAT_GOLDEN;
    return format_mix(hash) + FORMAT_GOLDEN;
}

bags_code bagi_frames_plan(bags_loader *l, loader_column *c, bags_error *err) {
    bags_load_field *g = &c->given;
    loader_frames *frames = l->frames;
    for (size_t d = 0; d < l->count && frames && !g->decode; d++)
        c->video = c->sources[d].kind == LOADER_BLOB_VIDEO && (d == 0 || c->video);
    FORMAT_TRY(frames_check_field(l, c, err));
    if (!frames)
        return BAGS_OK;
    if (g->offsets) {
        g->window = c->items = g->offset_count;
        g->offsets = (const int64_t *)frames_copy(
            l, g->offsets, c->items, sizeof *g->offsets, err);
        if (!g->offsets)
            return BAGS_ERROR_MEMORY;
    } else if (g->seconds) {
        g->window = c->items = g->second_count;
        g->seconds = (const double *)frames_copy(
            l, g->seconds, c->items, sizeof *g->seconds, err);
        if (!g->seconds)
            return BAGS_ERROR_MEMORY;
        frames->timed = true;
    } else
        c->items = c->sequence || c->video;
    frames->items += c->items;
    if (!frames->given.same_draw)
        c->salt = frames_hash_text(FORMAT_GOLDEN, g->name) | 1;
    if (!strcmp(g->name, frames->given.clock)) {
        c->times = frames->times;
        for (size_t d = 0; d < l->count; d++)
            c->sources[d].times = frames->clocks[d].times;
        return BAGS_OK;
    }
    c->times.name = g->times;
    c->times.rate = g->rate;
    return frames_find_times(l, g->name, &c->times, c->sources, err);
}

bags_code bagi_frames_add_masks(bags_loader *l, bags_error *err) {
    for (size_t i = 0; i < l->field_count; i++) {
        loader_column *c = &l->columns[i];
        if (!c->given.window)
            continue;
        c->mask = bagi_loader_add_column(l, c, "_pad", BAGS_DTYPE_BOOL, err);
        if (!c->mask)
            return err->code;
    }
    return BAGS_OK;
}

/* Check that two fields have the same number of items in an episode. */
static bags_code frames_check_items(loader_worker *w, const loader_frame *f,
    const char *name, size_t field, const char *other, uint64_t needs,
    bags_error *err) {
    const bags_reader *reader = w->loader->readers[f->dataset];
    uint64_t has = 0;
    FORMAT_TRY(bags_reader_items(reader, f->episode, field, &w->times, &has, err));
    return has == needs ? BAGS_OK
                        : frames_fail_items(reader, name, f, has, other, needs, err);
}

/* Count an episode's frames, and check its fields' numbers of items. */
static bags_code frames_count(
    loader_worker *w, loader_frame *f, uint64_t *out, bags_error *err) {
    const bags_loader *l = w->loader;
    const loader_frames *frames = l->frames;
    const loader_source *clock = &frames->clocks[f->dataset];
    const bags_reader *reader = l->readers[f->dataset];
    const char *name = frames->given.clock;
    uint64_t start, stop, items;
    FORMAT_TRY(
        bags_reader_items(reader, f->episode, clock->field, &w->times, &f->count, err));
    if (frames->times.name)
        FORMAT_TRY(frames_check_items(
            w, f, frames->times.name, clock->times, name, f->count, err));
    for (size_t i = 0; i < l->field_count; i++) {
        const loader_column *c = &l->columns[i];
        const loader_source *source = &c->sources[f->dataset];
        bool by_time = c->given.seconds != NULL;
        if (!c->items || c->video || source->field == clock->field)
            continue; /* videos are checked when they are opened */
        if (!by_time)
            FORMAT_TRY(frames_check_items(
                w, f, c->given.name, source->field, name, f->count, err));
        if (!c->times.name)
            continue;
        FORMAT_TRY(bags_reader_items(
            reader, f->episode, source->field, &w->times, &items, err));
        FORMAT_TRY(frames_check_items(
            w, f, c->times.name, source->times, c->given.name, items, err));
    }
    FORMAT_TRY(frames_range(w, f, &start, &stop, err));
    *out = stop - start;
    return BAGS_OK;
}

/* Announce the refs of episodes before reading them one by one. A failure shows up
 * during reading. */
static void frames_announce_refs(
    loader_worker *w, const bags_pick *picks, size_t count, size_t dataset) {
    const bags_loader *l = w->loader;
    uint64_t indices[FRAMES_BLOCK];
    bags_select none = bags_select_slice(l->frames->clocks[dataset].field, 0, 0, 1);
    for (size_t i = 0; i < count; i++)
        indices[i] = picks[i].index;
    (void)bags_reader_prefetch(
        l->readers[dataset], indices, count, &none, 1, &w->times, NULL);
}

/* Count the frames of all episodes. */
static bags_code frames_count_all(loader_worker *w, bags_error *err) {
    loader_frames *frames = w->loader->frames;
    bags_pick picks[FRAMES_BLOCK];
    uint64_t total = 0, own = 0;
    for (uint64_t place = 0; place < frames->episodes.length; place++) {
        size_t at = (size_t)(place % FRAMES_BLOCK);
        uint64_t left = frames->episodes.length - place;
        size_t count = left < FRAMES_BLOCK ? (size_t)left : FRAMES_BLOCK;
        if (at == 0)
            FORMAT_TRY(bags_order_get(&frames->episodes, 0, place, count, picks, err));
        for (size_t i = at, first = at; at == 0 && i < count; i = first) {
            while (i < count && picks[i].dataset == picks[first].dataset)
                i++;
            frames_announce_refs(w, picks + first, i - first, picks[first].dataset);
            first = i;
        }
        loader_frame f;
        memset(&f, 0, sizeof f);
        f.place = place;
        f.dataset = picks[at].dataset;
        f.episode = picks[at].index;
        FORMAT_TRY(frames_count(w, &f, &own, err));
        if (own > (UINT64_MAX >> 1) - total)
            return bags_fail(err, BAGS_ERROR_LIMIT, "2^63 frames or more");
        frames->before[place + 1] = total += own;
        frames->hash = format_mix(frames->hash ^ own) + FORMAT_GOLDEN;
    }
    return BAGS_OK;
}

static uint64_t frames_hash_number(uint64_t hash, double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    return format_mix(hash ^ bits) + FORMAT_GOLDEN;
}

/* Hash the options that determine which items count as frames. */
static uint64_t frames_hash_options(const bags_loader *l) {
    const loader_frames *frames = l->frames;
    uint64_t hash = frames_hash_text(frames->given.pad, frames->given.clock);
    hash = format_mix(hash ^ frames->episodes.selection) + FORMAT_GOLDEN;
    for (size_t i = 0; i < l->field_count && frames->given.pad; i++) {
        const bags_load_field *g = &l->columns[i].given;
        hash = frames_hash_text(hash, g->name);
        for (size_t k = 0; k < g->offset_count; k++)
            hash = format_mix(hash ^ (uint64_t)g->offsets[k]) + FORMAT_GOLDEN;
        for (size_t k = 0; k < g->second_count; k++)
            hash = frames_hash_number(hash, g->seconds[k]);
        hash = frames_hash_text(hash, l->columns[i].times.name);
        hash = frames_hash_number(hash, l->columns[i].times.rate);
        hash = frames_hash_number(hash, g->tolerance);
    }
    return hash;
}

bags_code bagi_frames_open(bags_loader *l, bags_error *err) {
    loader_frames *frames = l->frames;
    bags_order_options selected;
    loader_worker scratch; /* w->checked stays NULL, so that no checks are recorded */
    uint64_t *lengths =
        (uint64_t *)bagi_loader_allocate(l, l->count, sizeof *lengths, err);
    if (!lengths)
        return BAGS_ERROR_MEMORY;
    for (size_t d = 0; d < l->count; d++)
        lengths[d] = bags_reader_length(l->readers[d]);
    memset(&selected, 0, sizeof selected);
    selected.in_order = true;
    selected.selections = l->options.order.selections;
    selected.take = l->options.order.take;
    FORMAT_TRY(bags_order_init(
        &frames->episodes, lengths, l->count, &selected, l->options.allocator, err));
    if (frames->episodes.length > SIZE_MAX / 64)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    frames->before = (uint64_t *)bagi_loader_allocate(
        l, (size_t)frames->episodes.length + 1, sizeof *frames->before, err);
    if (!frames->before)
        return BAGS_ERROR_MEMORY;
    frames->hash = frames_hash_options(l);
    frames->opened = frames->bits++;
    memset(&scratch, 0, sizeof scratch);
    scratch.loader = l;
    bags_code code = frames_count_all(&scratch, err);
    bags_row_free(&scratch.times);
    if (scratch.videos)
        l->options.videos->close(scratch.videos);
    return code;
}
