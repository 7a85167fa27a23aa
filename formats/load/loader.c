/*
 * loader.c - batches of tensors from datasets, shuffled, by several threads.
 *
 * It needs no library except POSIX or Windows threads and libm. order.c selects a
 * batch's datapoints, tokens.c makes windows and packed rows, and warp.c transforms
 * images. ring.h lists the loader's other parts.
 *
 * Each thread makes entire batches, in a ring of slots. Batch number t, counted from
 * the start and excluding batches dropped by a seek, uses slot t % slots:
 *
 *       released         delivered               claimed
 *          |                 |                      |
 *     free | held: the last  | ready, or being      | free
 *          | hold + 1 of     | made by a thread     |
 *          | bags_loader_next| (loader_load_batch)  |
 *
 *     free -> claimed    loader_run, while claimed < released + slots
 *     claimed -> ready   loader_run, after loader_load_batch
 *     ready -> held      bags_loader_next, in the order of t
 *     held -> free       bags_loader_next, hold + 1 calls later
 *
 * One lock guards these three numbers, every slot's `ready`, and `stopping`. A claimed
 * slot belongs to its thread; a ready or held slot belongs to the caller.
 */
#include "ring.h"

#include "random.h"

#include <errno.h>

#define LOADER_TOUCHED 64 /* datapoints announced to the processor at once */

/* ---- a batch ---- */

/* Find where a datapoint's windows start. */
static bags_code loader_find_window(loader_worker *w, const bags_pick *pick,
    uint64_t *random, uint64_t *start, bags_error *err) {
    const bags_loader *l = w->loader;
    bool is_random = l->options.window_start == BAGS_WINDOW_RANDOM;
    uint64_t first = is_random ? 0 : (uint64_t)l->options.window_start;
    uint64_t last = UINT64_MAX;
    for (size_t i = 0; i < l->column_count; i++) {
        const loader_column *c = &l->columns[i];
        uint64_t items = 0;
        if (!c->span)
            continue;
        FORMAT_TRY(bags_reader_items(l->readers[pick->dataset], pick->index,
            c->sources[pick->dataset].field, &w->row, &items, err));
        if (items < c->span || items - c->span < first) {
            bags_fail(err, BAGS_ERROR_RANGE,
                "too short for the window (%" PRIu64 " items, needs %" PRIu64 ")",
                items, first + c->span);
            return format_fail_at(l->readers[pick->dataset], c->given.name, pick->index,
                UINT64_MAX, BAGS_ERROR_RANGE, err);
        }
        last = items - c->span < last ? items - c->span : last;
    }
    *start = is_random ? format_below(random, last) : first;
    return BAGS_OK;
}

/* Read all fields of a datapoint with one call, and append their items to the tensors.
 * If one fails, loader_load_batch restores the previous sizes. */
static bags_code loader_load_datapoint(loader_worker *w, loader_slot *s,
    const bags_pick *pick, uint64_t random, bags_error *err) {
    const bags_loader *l = w->loader;
    uint64_t start = 0;
    bags_load_item item;
    memset(&item, 0, sizeof item);
    item.reader = l->readers[pick->dataset];
    item.pick = *pick;
    if (l->windowed)
        FORMAT_TRY(loader_find_window(w, pick, &random, &start, err));
    item.random = random;
    for (size_t i = 0; i < l->field_count; i++) {
        const loader_column *c = &l->columns[i];
        size_t field = c->sources[pick->dataset].field;
        w->selects[i] =
            c->span ? bags_select_slice(field, start, start + c->span, c->given.stride)
                    : bags_select_all(field);
    }
    FORMAT_TRY(bags_reader_get(
        item.reader, pick->index, w->selects, l->field_count, &w->row, err));
    for (size_t i = 0; i < l->field_count; i++) {
        loader_part *p = &s->parts[i];
        size_t items = bags_row_length(&w->row, i);
        for (item.item = 0; item.item < items; item.item++)
            FORMAT_TRY(bagi_loader_load_item(
                w, &l->columns[i], p, &item, i, (size_t)item.item, err));
    }
    for (size_t i = 0; i < l->column_count; i++) {
        loader_part *p = &s->parts[i];
        if (p->offsets.capacity)
            FORMAT_TRY(
                loader_part_push(&p->offsets, s->batch.length + 1, p->used.items, err));
    }
    return BAGS_OK;
}

/* Choose where tokens are written: to the tensor or, if they will be converted, to the
 * thread's memory. */
static bags_code loader_aim_tokens(
    loader_worker *w, unsigned char *to, uint64_t count, bags_error *err) {
    const format_tokens_tensor *tensor = w->loader->tokens->tensors;
    w->targets[0] = to;
    if (tensor->dtype == tensor->stored)
        return BAGS_OK;
    FORMAT_TRY(bags_buffer_reserve(
        &w->converted, (size_t)count * bags_dtype_size(tensor->stored), err));
    w->targets[0] = w->converted.data;
    return BAGS_OK;
}

/* Convert the tokens in the thread's memory. */
static bags_code loader_convert_tokens(const loader_worker *w, const bags_pick *pick,
    unsigned char *to, uint64_t count, bags_error *err) {
    const format_tokens *tokens = w->loader->tokens;
    const format_tokens_tensor *tensor = tokens->tensors;
    if (w->targets[0] == to)
        return BAGS_OK;
    bags_code code = bagi_loader_convert(
        tensor->dtype, to, tensor->stored, w->targets[0], (size_t)count, err);
    return code
               ? bags_prefix(err, code, "%s: field \"%.200s\": %s %" PRIu64 ": ",
                     bags_path_tail(bags_reader_path(tokens->readers[pick->dataset])),
                     tensor->name, tokens->packed ? "datapoint" : "window", pick->index)
               : BAGS_OK;
}

/* Append a window of tokens to the tensors, and announce the next one. */
static bags_code loader_load_window(loader_worker *w, loader_slot *s,
    const bags_pick *pick, const bags_pick *next, bags_error *err) {
    const bags_loader *l = w->loader;
    if (next)
        l->tokens->touch(l->options.tokens, next);
    for (size_t i = 0; i < l->column_count; i++)
        w->targets[i] = s->parts[i].data.data + s->parts[i].used.size;
    unsigned char *to = w->targets[0];
    FORMAT_TRY(loader_aim_tokens(w, to, l->tokens->length + 1, err));
    FORMAT_TRY(l->tokens->window(l->options.tokens, &w->row, pick, w->targets, err));
    FORMAT_TRY(loader_convert_tokens(w, pick, to, l->tokens->length + 1, err));
    for (size_t i = 0; i < l->column_count; i++) {
        s->parts[i].used.size += l->columns[i].item_size;
        s->parts[i].used.items++;
        w->unwatched += l->columns[i].item_size;
    }
    return BAGS_OK;
}

/* Append the end of a packed row's document to cu_seqlens. */
static bags_code loader_push_end(loader_part *p, int32_t end, bags_error *err) {
    FORMAT_TRY(loader_part_reserve(&p->data, p->used.size, sizeof end, err));
    memcpy(p->data.data + p->used.size, &end, sizeof end);
    p->used.size += sizeof end;
    p->used.items++;
    return BAGS_OK;
}

/* Append packed row number `at` of the batch to the tensors. */
static bags_code loader_load_row(
    loader_worker *w, loader_slot *s, size_t at, bags_error *err) {
    const bags_loader *l = w->loader;
    const uint64_t *rows = (const uint64_t *)(const void *)s->rows.data;
    const bags_piece *pieces = (const bags_piece *)(const void *)s->pieces.data;
    size_t fields = l->tokens->field_count;
    int32_t end = 0;
    FORMAT_TRY(loader_push_end(&s->parts[fields], end, err));
    for (uint64_t k = rows[at]; k < rows[at + 1]; k++) {
        for (size_t i = 0; i < fields; i++) {
            loader_part *p = &s->parts[i];
            size_t size = (size_t)pieces[k].length * l->columns[i].item_size;
            FORMAT_TRY(loader_part_reserve(&p->data, p->used.size, size, err));
            w->targets[i] = p->data.data + p->used.size;
            p->used.size += size;
            p->used.items += pieces[k].length;
            w->unwatched += size;
        }
        bags_pick pick = {pieces[k].dataset, pieces[k].document};
        unsigned char *to = w->targets[0];
        FORMAT_TRY(loader_aim_tokens(w, to, pieces[k].length, err));
        FORMAT_TRY(
            l->tokens->piece(l->options.tokens, &w->row, &pieces[k], w->targets, err));
        FORMAT_TRY(loader_convert_tokens(w, &pick, to, pieces[k].length, err));
        end += (int32_t)pieces[k].length;
        FORMAT_TRY(loader_push_end(&s->parts[fields], end, err));
    }
    for (size_t i = 0; i < l->column_count; i++)
        FORMAT_TRY(loader_part_push(
            &s->parts[i].offsets, s->batch.length + 1, s->parts[i].used.items, err));
    return BAGS_OK;
}

/* Announce datapoints to the disk or to the processor. Failures show up when they are
 * read. */
static void loader_announce(
    loader_worker *w, const bags_pick *picks, size_t count, bool to_disk) {
    const bags_loader *l = w->loader;
    if (bags_buffer_reserve(&w->indices, count * sizeof(uint64_t), NULL))
        return;
    uint64_t *indices = (uint64_t *)(void *)w->indices.data;
    for (size_t d = 0; d < l->count; d++) {
        size_t found = 0;
        for (size_t i = 0; i < count; i++)
            if (picks[i].dataset == d)
                indices[found++] = picks[i].index;
        for (size_t i = 0; found && i < l->field_count; i++)
            w->selects[i] = bags_select_all(l->columns[i].sources[d].field);
        if (found && to_disk)
            (void)bags_reader_prefetch(l->readers[d], indices, found, w->selects,
                l->field_count, &w->row, NULL);
        else if (found)
            bags_reader_touch(
                l->readers[d], indices, found, w->selects, l->field_count);
    }
}

static bool loader_is_stopping(bags_loader *l) {
    gate_lock(&l->monitor);
    bool stop = l->stopping;
    gate_unlock(&l->monitor);
    return stop;
}

/* True if the loader is being closed or moved. Checked before every call of a caller's
 * function, otherwise every 64 datapoints or 4 KiB, because taking the lock costs as
 * much as reading a small datapoint. */
static bool loader_must_stop(loader_worker *w, size_t i) {
    bags_loader *l = w->loader;
    if (!l->running || (!l->calls && i % 64 && w->unwatched < 4096))
        return false;
    w->unwatched = 0;
    return loader_is_stopping(l);
}

/* Start the tensors of a batch of at most `count` datapoints. */
static bags_code loader_start_parts(
    const bags_loader *l, loader_slot *s, size_t count, bags_error *err) {
    for (size_t i = 0; i < l->column_count; i++) {
        const loader_column *c = &l->columns[i];
        loader_part *p = &s->parts[i];
        size_t each = c->given.window ? (size_t)c->given.window : 1;
        memset(&p->used, 0, sizeof p->used);
        if (c->ragged)
            FORMAT_TRY(loader_part_push(&p->offsets, 0, 0, err));
        else if (c->form == LOADER_FORM_STACKED)
            FORMAT_TRY(bags_buffer_reserve(&p->data, count * each * c->item_size, err));
    }
    return BAGS_OK;
}

/* Describe the tensors. */
static bags_code loader_finish_parts(
    loader_worker *w, loader_slot *s, bags_error *err) {
    const bags_loader *l = w->loader;
    for (size_t i = 0; i < l->column_count; i++) {
        const loader_column *c = &l->columns[i];
        loader_part *p = &s->parts[i];
        bags_tensor *t = &s->tensors[i];
        bags_value *values = (bags_value *)(void *)p->values.data;
        uint64_t *shapes = (uint64_t *)(void *)p->shapes.data;
        if (c->form != LOADER_FORM_STACKED)
            FORMAT_TRY(loader_part_push(&p->ends, p->used.items, p->used.size, err));
        memset(t, 0, sizeof *t);
        t->name = c->given.name;
        t->dtype = c->dtype;
        t->data = p->data.data;
        t->size = p->used.size;
        t->items = p->used.items;
        t->offsets = (const uint64_t *)(const void *)p->offsets.data;
        t->ends = (const uint64_t *)(const void *)p->ends.data;
        t->shape[t->dims++] = t->offsets ? t->items : s->batch.length;
        if (c->given.window)
            t->shape[t->dims++] = c->given.window;
        for (size_t k = 0; k < c->dims; k++)
            t->shape[t->dims++] = c->shape[k];
        if (c->on_device) {
            FORMAT_TRY(bagi_loader_make_on_device(w, s, i, err));
            t->on_device = true;
            t->data = p->on_device;
        }
        if (c->form != LOADER_FORM_VALUES)
            continue;
        t->values = values;
        for (uint64_t k = 0; k < t->items; k++) {
            values[k].data = values[k].size ? p->data.data + t->ends[k] : NULL;
            values[k].shape = shapes;
            shapes += values[k].dims;
        }
    }
    return BAGS_OK;
}

/* Describe this rank's packed rows. */
static void loader_show_rows(loader_slot *s, size_t first, size_t count) {
    const uint64_t *rows = (const uint64_t *)(const void *)s->rows.data;
    s->batch.pieces = (const bags_piece *)(const void *)s->pieces.data;
    s->batch.rows = rows + first;
    s->batch.dropped = s->dropped;
    for (size_t i = 0; i < count; i++) {
        s->picks[i].dataset = s->batch.pieces[rows[first + i]].dataset;
        s->picks[i].index = s->batch.pieces[rows[first + i]].document;
    }
}

/* Get the datapoints at some positions. A caller's own order may return anything, so
 * its picks are checked. */
static bags_code loader_pick(const bags_loader *l, uint64_t epoch, uint64_t start,
    size_t count, bags_pick *picks, bags_error *err) {
    const bags_loader_options *o = &l->options;
    if (!o->sampler)
        return bags_order_get(&l->order, epoch, start, count, picks, err);
    if (count)
        FORMAT_TRY(o->sampler(o->sampler_user, epoch, start, count, picks, err));
    for (size_t i = 0; i < count; i++) {
        size_t d = picks[i].dataset;
        uint64_t length = d < l->count ? bagi_loader_units(l, d) : 0;
        if (picks[i].index >= length)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "the sampler returned index %" PRIu64 " of dataset %" PRIu64
                " for position %" PRIu64 " (length %" PRIu64 ")",
                picks[i].index, (uint64_t)d, start + i, length);
    }
    return BAGS_OK;
}

/* This rank's slice of a batch. */
typedef struct loader_slice {
    uint64_t first; /* position in the batch */
    size_t count;
    uint64_t key; /* seeds the datapoints' random numbers */
} loader_slice;

/* Describe a slot's batch, and find its datapoints. */
static bags_code loader_start_batch(
    const bags_loader *l, loader_slot *s, loader_slice *slice, bags_error *err) {
    const bags_loader_options *o = &l->options;
    bool packed = l->tokens && l->tokens->packed;
    uint64_t start = s->at.batch * o->batch, left = l->order.length - start;
    uint64_t size = packed ? s->row_count : left < o->batch ? left : o->batch;
    slice->first = o->rank * size / o->ranks;
    slice->count = (size_t)((o->rank + UINT64_C(1)) * size / o->ranks - slice->first);
    slice->key = format_key(~o->order.seed, s->at.epoch);
    memset(&s->batch, 0, sizeof s->batch);
    s->batch.epoch = s->at.epoch;
    s->batch.batch = s->at.batch;
    s->batch.position = start + slice->first;
    s->batch.picks = s->picks;
    s->batch.frames = s->frames;
    s->batch.count = l->column_count;
    s->batch.tensors = s->tensors;
    if (packed)
        loader_show_rows(s, (size_t)slice->first, slice->count);
    else
        FORMAT_TRY(loader_pick(
            l, s->at.epoch, s->batch.position, slice->count, s->picks, err));
    return loader_start_parts(l, s, slice->count, err);
}

/* Append a frame to the tensors. *pick is changed to its episode. */
static bags_code loader_load_frame(loader_worker *w, loader_slot *s, bags_pick *pick,
    uint64_t random, bags_error *err) {
    loader_frame frame;
    FORMAT_TRY(bagi_frames_find(w, pick, &frame, err));
    pick->index = frame.episode;
    s->frames[s->batch.length] = frame.number;
    return bagi_frames_load(w, s, &frame, random, err);
}

/* Append the slice's element i (the datapoint, frame, window or row `pick`) to the
 * tensors. Its index in s->picks may differ once others were skipped. */
static bags_code loader_load_one(loader_worker *w, loader_slot *s,
    const loader_slice *slice, size_t i, bags_pick *pick, bags_error *err) {
    const bags_loader *l = w->loader;
    uint64_t random = format_mix(slice->key + s->batch.position + i);
    if (l->frames)
        return loader_load_frame(w, s, pick, random, err);
    if (!l->tokens)
        return loader_load_datapoint(w, s, pick, random, err);
    if (l->tokens->packed)
        return loader_load_row(w, s, (size_t)slice->first + i, err);
    return loader_load_window(
        w, s, pick, i + 1 < slice->count ? &s->picks[i + 1] : NULL, err);
}

/* Make the batch for a slot, with the device if there is one. */
static bags_code loader_fill_batch(loader_worker *w, loader_slot *s, bags_error *err) {
    const bags_loader *l = w->loader;
    const bags_loader_options *o = &l->options;
    loader_slice slice;
    FORMAT_TRY(loader_start_batch(l, s, &slice, err));
    bagi_loader_start_staged(w);
    bool datapoints = !l->tokens && !l->frames;
    if (o->prefetch && datapoints)
        loader_announce(w, s->picks, slice.count, true);
    if (o->prefetch && l->frames)
        bagi_frames_announce(w, s->picks, slice.count);
    for (size_t i = 0; i < slice.count && !loader_must_stop(w, i); i++) {
        size_t unwatched = w->unwatched, left = slice.count - i;
        bags_pick pick = s->picks[i];
        if (i % LOADER_TOUCHED == 0 && l->count <= 8 && datapoints)
            loader_announce(
                w, s->picks + i, left < LOADER_TOUCHED ? left : LOADER_TOUCHED, false);
        for (size_t k = 0; k < l->column_count; k++)
            s->parts[k].mark = s->parts[k].used;
        bags_code code = loader_load_one(w, s, &slice, i, &pick, err);
        if (code && !(o->skip_damaged && loader_is_damage(code)))
            return code;
        for (size_t k = 0; code && k < l->column_count; k++)
            s->parts[k].used = s->parts[k].mark;
        s->batch.skipped += code != BAGS_OK;
        if (code)
            continue;
        s->picks[s->batch.length++] = pick;
        s->batch.bytes += w->unwatched - unwatched;
    }
    return loader_finish_parts(w, s, err);
}

/* Make the batch for a slot. If the device rejects an image, its error does not name
 * it, so the CPU makes the batch again: it skips or reports damage as usual. */
static bags_code loader_load_batch(loader_worker *w, loader_slot *s, bags_error *err) {
    w->rejected = w->on_cpu = false;
    bags_code code = loader_fill_batch(w, s, err);
    if (!code || !w->rejected)
        return code;
    w->on_cpu = true;
    return loader_fill_batch(w, s, err);
}

/* ---- which batch is next ---- */

/* True if no batch follows. Without datapoints, no batch exists at all. */
static bool loader_is_last(const bags_loader *l, const loader_cursor *at) {
    return l->batches == 0 || (l->options.epochs && at->epoch >= l->options.epochs);
}

/* Advance to the next batch, possibly in the next epoch. */
static void loader_advance(const bags_loader *l, loader_cursor *at) {
    if (++at->batch == l->batches) {
        at->batch = 0;
        at->epoch++;
    }
}

/* Pack an epoch's blocks until one contains the cursor's row. *found is false after the
 * last row. Counts the documents left out by earlier blocks. */
static bags_code loader_find_row(bags_loader *l, loader_cursor *at, uint64_t *dropped,
    bool *found, bags_error *err) {
    format_packer *p = l->packer;
    uint64_t blocks = (l->order.length + FORMAT_PACK_BLOCK - 1) / FORMAT_PACK_BLOCK;
    for (*found = false; at->block < blocks; at->block++, at->row = 0) {
        if (!p->valid || p->epoch != at->epoch || p->block != at->block)
            FORMAT_TRY(l->tokens->pack(l->options.tokens, p, &l->packer_row, &l->order,
                at->epoch, at->block, err));
        *found = at->row < p->row_count;
        if (*found)
            break;
        *dropped += p->dropped;
    }
    return BAGS_OK;
}

/* Append a row of the packed block to a slot that already has *used pieces. */
static bags_code loader_claim_row(
    bags_loader *l, loader_slot *s, uint64_t row, size_t *used, bags_error *err) {
    const format_packer *p = l->packer;
    const uint32_t *starts = (const uint32_t *)(const void *)p->rows.data;
    const bags_piece *from =
        (const bags_piece *)(const void *)p->pieces.data + starts[row];
    size_t size = (starts[row + 1] - starts[row]) * sizeof *from;
    FORMAT_TRY(loader_part_reserve(&s->pieces, *used * sizeof *from, size, err));
    FORMAT_TRY(loader_part_push(&s->rows, s->row_count, *used, err));
    memcpy(s->pieces.data + *used * sizeof *from, from, size);
    *used += starts[row + 1] - starts[row];
    s->row_count++;
    return BAGS_OK;
}

/* Claim the next batch of packed rows, taking rows block by block. */
static bags_code loader_claim_rows(bags_loader *l, loader_slot *s, bags_error *err) {
    loader_cursor at = l->claim;
    size_t used = 0;
    bool found = false;
    s->row_count = 0;
    s->dropped = 0;
    FORMAT_TRY(loader_find_row(l, &at, &s->dropped, &found, err));
    while (found && s->row_count < l->options.batch) {
        FORMAT_TRY(loader_claim_row(l, s, at.row++, &used, err));
        FORMAT_TRY(loader_find_row(l, &at, &s->dropped, &found, err));
    }
    FORMAT_TRY(loader_part_push(&s->rows, s->row_count, used, err));
    at.batch++;
    if (!found) { /* a state saved after an epoch's last row belongs to the next
                     epoch */
        at.epoch++;
        at.batch = at.block = at.row = 0;
    }
    s->after = l->claim = at;
    return BAGS_OK;
}

/* Claim the next batch for a slot. A failure belongs to the batch. */
static bags_code loader_claim(bags_loader *l, loader_slot *s, bags_error *err) {
    s->ends = false;
    s->at = l->claim;
    if (!l->tokens || !l->tokens->packed) {
        loader_advance(l, &l->claim);
        s->after = l->claim;
        return BAGS_OK;
    }
    for (int empty = 0; empty < 2; empty++) {
        s->at = l->claim;
        FORMAT_TRY(loader_claim_rows(l, s, err));
        bool whole = s->row_count == l->options.batch;
        if (s->row_count && (whole || !l->options.drop_last))
            return BAGS_OK;
        if (l->options.epochs && l->claim.epoch >= l->options.epochs)
            break;
        if (s->row_count == 0)
            break;
        if (empty)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "drop_last leaves no batch (%" PRIu64 " rows, batches of %" PRIu32 ")",
                (uint64_t)s->row_count, l->options.batch);
    }
    /* Nothing follows: there are no more epochs, or none with a row. */
    s->ends = l->claimed_all = true;
    s->after = l->claim;
    return BAGS_OK;
}

/* Advance a cursor from the start of an epoch by this many packed rows. */
static bags_code loader_skip_rows(
    bags_loader *l, loader_cursor *at, uint64_t count, bags_error *err) {
    uint64_t unused = 0;
    bool found = false;
    FORMAT_TRY(loader_find_row(l, at, &unused, &found, err));
    while (found && count > 0) {
        uint64_t left = l->packer->row_count - at->row;
        uint64_t step = count < left ? count : left;
        at->row += step;
        count -= step;
        FORMAT_TRY(loader_find_row(l, at, &unused, &found, err));
    }
    return found ? BAGS_OK
                 : bags_fail(err, BAGS_ERROR_RANGE,
                       "batch out of range (after the last row)");
}

/* ---- threads ---- */

/* The loader that this thread belongs to. */
static GATE_OF_THREAD bags_loader *loader_of_thread;

bool bags_loader_is_stopping(void) {
    return loader_of_thread && loader_is_stopping(loader_of_thread);
}

/* A thread's main function: claim the next batch, make it without holding the lock, and
 * mark it ready. A failure is kept in the slot, so that failures are reported in batch
 * order. */
static gate_result GATE_CALL loader_run(void *user) {
    loader_worker *w = (loader_worker *)user;
    bags_loader *l = w->loader;
    loader_of_thread = l;
    gate_lock(&l->monitor);
    while (!l->stopping) {
        if (l->claimed >= l->released + l->slot_count || l->claimed_all ||
            loader_is_last(l, &l->claim)) {
            gate_wait(&l->monitor);
            continue;
        }
        loader_slot *s = &l->slots[l->claimed++ % l->slot_count];
        s->code = loader_claim(l, s, &s->err);
        gate_unlock(&l->monitor);
        if (!s->code && !s->ends)
            s->code = loader_load_batch(w, s, &s->err);
        gate_lock(&l->monitor);
        s->ready = true;
        gate_wake(&l->monitor);
    }
    gate_unlock(&l->monitor);
    return 0;
}

/* True in a child made by fork(). The child lacks the threads, and the memory that they
 * were writing is frozen as of the fork. */
static bool loader_is_forked(const bags_loader *l) {
    return l->running && l->process != gate_process();
}

/* Stop the threads, and discard the batches that they made. */
static void loader_stop(bags_loader *l) {
    if (l->running) {
        gate_lock(&l->monitor);
        l->stopping = true;
        gate_wake(&l->monitor);
        gate_unlock(&l->monitor);
        for (size_t i = 0; i < l->running; i++)
            gate_thread_join(l->workers[i].id);
    }
    l->running = 0;
    l->stopping = l->started = l->claimed_all = l->finished = false;
    /* Held batches keep their slots. */
    uint64_t held = l->options.hold + UINT64_C(1);
    l->claimed = l->delivered;
    l->released = l->delivered > held ? l->delivered - held : 0;
    for (size_t i = 0; l->slots && i < l->slot_count; i++)
        l->slots[i].ready = l->slots[i].checked = false;
}

/* Start as many threads as the system allows; without any, bags_loader_next does the
 * work. */
static void loader_start(bags_loader *l) {
    size_t started = 0;
    l->started = true;
    l->process = gate_process();
    l->claim = l->next;
    gate_lock(&l->monitor); /* the threads read `running` */
    while (started < l->thread_count &&
           gate_thread_start(&l->workers[started].id, loader_run, &l->workers[started]))
        started++;
    l->running = started;
    gate_unlock(&l->monitor);
}

/* ---- opening and closing ---- */

/* The threads start with the first batch, so that the loader may first be moved to
 * another position. */
bags_loader *bags_loader_open(const bags_reader *const *readers, size_t count,
    const bags_loader_options *options, bags_error *err) {
    bags_error local;
    if (!err)
        err = &local;
    bags_loader *l = (bags_loader *)format_state(
        options ? options->allocator : NULL, sizeof *l, err);
    if (!l)
        return NULL;
    if (!gate_start(&l->monitor)) {
        bags_fail(err, BAGS_ERROR_MEMORY, "cannot make a lock");
        format_state_close(l);
        return NULL;
    }
    if (options)
        l->options = *options;
    if (l->options.images)
        l->images = *l->options.images;
    l->count = readers ? count : 0;
    if (!bagi_loader_prepare(l, readers, err))
        return l;
    bags_loader_close(l);
    return NULL;
}

void bags_loader_close(bags_loader *l) {
    if (!l || loader_is_forked(l))
        return;
    loader_stop(l);
    gate_end(&l->monitor);
    bagi_loader_free(l);
}

/* ---- using a loader ---- */

/* Record the first failure; later calls repeat it. */
static bags_code loader_fail(
    bags_loader *l, bags_code code, const bags_error *why, bags_error *err) {
    l->error = *why;
    l->error.code = code;
    if (err)
        *err = l->error;
    return code;
}

static bags_code loader_check_usable(bags_loader *l, bags_error *err) {
    if (loader_is_forked(l))
        return bags_fail(err, BAGS_ERROR_STATE,
            "a loader that has begun cannot be used in a child made by fork(); open it "
            "in the child");
    return l->error.code ? loader_fail(l, l->error.code, &l->error, err) : BAGS_OK;
}

/* Make the next batch in this thread. If a hook gives up, the next call tries again. */
static void loader_work(bags_loader *l, loader_slot *s) {
    s->code = loader_claim(l, s, &s->err);
    if (!s->code && !s->ends)
        s->code = loader_load_batch(&l->workers[0], s, &s->err);
    s->ready = !s->code || s->err.system != EINTR;
    if (!s->ready)
        l->claim = s->at;
}

/* Wait up to `seconds` for a thread to finish a slot's batch. True if it is ready. */
static bool loader_wait_ready(bags_loader *l, const loader_slot *s, double seconds) {
    double until = gate_now() + seconds, left = seconds;
    gate_lock(&l->monitor);
    if (l->delivered > l->options.hold)
        l->released = l->delivered - l->options.hold;
    gate_wake(&l->monitor);
    while (!s->ready && (seconds < 0 || left > 0)) {
        if (seconds < 0)
            gate_wait(&l->monitor);
        else
            gate_wait_seconds(&l->monitor, left < 1 ? left : 1);
        left = until - gate_now();
    }
    bool ready = s->ready;
    gate_unlock(&l->monitor);
    return ready;
}

/* Wait up to `seconds` for the next batch (negative: forever). *slot is NULL if there
 * is none, or if it is not ready yet; the latter sets *late. */
static bags_code loader_await(
    bags_loader *l, double seconds, loader_slot **slot, bool *late, bags_error *err) {
    *slot = NULL;
    *late = false;
    FORMAT_TRY(loader_check_usable(l, err));
    if (l->finished || loader_is_last(l, &l->next))
        return BAGS_OK;
    if (!l->started)
        loader_start(l);
    loader_slot *s = &l->slots[l->delivered % l->slot_count];
    if (l->running)
        *late = !loader_wait_ready(l, s, seconds);
    else if (!s->ready)
        loader_work(l, s);
    if (*late)
        return BAGS_OK;
    bags_code code = s->code;
    bags_error *why = &s->err, of_check;
    /* All batches of an epoch come from one version of the datasets. */
    bool check = !s->checked && s->after.epoch != s->at.epoch;
    for (size_t i = 0; !code && i < l->count && check; i++)
        code = bags_reader_check(l->readers[i], why = &of_check);
    s->checked = !code;
    if (code && why->system == EINTR && (!l->running || why == &of_check)) {
        if (err)
            *err = *why;
        return code;
    }
    if (code)
        return loader_fail(l, code, why, err);
    *slot = s;
    return BAGS_OK;
}

bags_code bags_loader_peek(bags_loader *l, double seconds, const bags_batch **batch,
    bool *late, bags_error *err) {
    loader_slot *s = NULL;
    bool unused;
    bags_code code =
        loader_await(l, seconds >= 0 ? seconds : 0, &s, late ? late : &unused, err);
    *batch = s && !s->ends ? &s->batch : NULL;
    return code;
}

bags_code bags_loader_next(bags_loader *l, const bags_batch **batch, bags_error *err) {
    loader_slot *s = NULL;
    bool late;
    *batch = NULL;
    bags_code code = loader_await(l, -1, &s, &late, err);
    if (!s)
        return code;
    s->ready = s->checked = false;
    l->next = s->after;
    l->finished = s->ends;
    if (s->ends)
        return BAGS_OK;
    l->delivered++;
    *batch = &s->batch;
    return BAGS_OK;
}

uint64_t bags_loader_batches(const bags_loader *l) {
    return l->packer ? 0 : l->batches;
}

/* Batches made ahead are dropped: making them again costs less than keeping track of
 * batches out of order. */
bags_code bags_loader_seek(
    bags_loader *l, uint64_t epoch, uint64_t batch, bags_error *err) {
    FORMAT_TRY(loader_check_usable(l, err));
    if (batch && batch >= l->batches)
        return bags_fail(err, BAGS_ERROR_RANGE,
            "batch out of range (%" PRIu64 ", %" PRIu64 " per epoch)", batch,
            l->batches);
    loader_stop(l);
    loader_cursor to = {epoch, batch, 0, 0};
    if (l->packer && batch) {
        uint64_t each = l->options.batch, most = UINT64_MAX / each;
        FORMAT_TRY(loader_skip_rows(l, &to, (batch < most ? batch : most) * each, err));
    }
    l->next = to;
    return BAGS_OK;
}

bags_code bagi_loader_seek_row(
    bags_loader *l, const loader_cursor *to, bags_error *err) {
    loader_cursor at = *to;
    uint64_t unused = 0;
    bool found = false;
    FORMAT_TRY(loader_check_usable(l, err));
    loader_stop(l);
    FORMAT_TRY(loader_find_row(l, &at, &unused, &found, err));
    if ((to->block || to->row) &&
        (!found || at.block != to->block || at.row != to->row))
        return bags_fail(err, BAGS_ERROR_CORRUPT, "damaged loader state (no such row)");
    l->next = *to;
    return BAGS_OK;
}

void *bags_loader_take(bags_loader *l, const bags_batch *batch, size_t tensor) {
    void *taken = NULL;
    for (size_t i = 0; i < l->slot_count && tensor < batch->count; i++)
        if (&l->slots[i].batch == batch) {
            taken = l->slots[i].parts[tensor].on_device;
            l->slots[i].parts[tensor].on_device = NULL;
        }
    return taken;
}

bags_view bags_tensor_get(const bags_batch *batch, const bags_tensor *t, size_t i,
    uint64_t *first, uint64_t *count) {
    bags_view bytes = {NULL, 0};
    uint64_t start = 0, stop = 0;
    if (i < batch->length) {
        start = t->offsets ? t->offsets[i] : t->items / batch->length * i;
        stop = t->offsets ? t->offsets[i + 1] : start + t->items / batch->length;
    }
    if (start < stop) {
        uint64_t each = t->size / t->items;
        uint64_t from = t->ends ? t->ends[start] : start * each;
        uint64_t to = !t->ends    ? stop * each
                      : t->values ? t->ends[stop - 1] + t->values[stop - 1].size
                                  : t->ends[stop];
        bytes.data = (const unsigned char *)t->data + from;
        bytes.size = (size_t)(to - from);
    }
    if (first)
        *first = start;
    if (count)
        *count = stop - start;
    return bytes;
}
