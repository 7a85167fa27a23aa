/* reader.c - DatasetReader: datapoints as dicts, and columns. */
#include "core.h"

#include "blocks.h"

/* ---- opening ---- */

/* Set the fields. `choose` is a function that receives a list of names and types, and
 * adds the codec of each. */
static bool reader_fields(Opened *reader, PyObject *choose) {
    size_t count;
    const bags_field *of = bags_reader_fields(reader->source->reader, &count);
    OWNED PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *pair = Py_BuildValue("ss", of[i].name, of[i].type);
        if (!pair || PyList_SetItem(list, (Py_ssize_t)i, pair))
            Py_CLEAR(list);
    }
    OWNED PyObject *chosen =
        list ? PyObject_CallFunctionObjArgs(choose, list, NULL) : NULL;
    return chosen && take_fields(&reader->base, reader->source->path, chosen) &&
           reader->base.count == count;
}

static bool open_dataset(
    Source *source, const char *path, const void *options, bags_error *err) {
    source->reader = bags_reader_open(path, (const bags_reader_options *)options, err);
    return source->reader != NULL;
}

/* _core.DatasetReader(path, choose, storage, options) */
static int reader_init(PyObject *self, PyObject *args, PyObject *unused) {
    Opened *reader = (Opened *)self;
    PyObject *path, *choose, *storage, *named;
    bags_reader_options options;
    (void)unused;
    if (!PyArg_ParseTuple(args, "OOOO", &path, &choose, &storage, &named) ||
        !begin_init(self) || !take_struct(&options, sizeof options, named))
        return -1;
    options.cache_index &= options.no_mmap;
    options.registry = reader->base.state->registry;
    reader->source = open_source(
        reader->base.state, path, storage, &options.env.io, open_dataset, &options);
    if (!reader->source)
        return -1;
    if (!reader_fields(reader, choose)) {
        Py_CLEAR(reader->source);
        return -1;
    }
    reader->base.path = Py_NewRef(path);
    return 0;
}

Source *reader_source_of(State *state, PyObject *reader) {
    if (PyObject_TypeCheck(reader, state->reader))
        return source_of(reader);
    PyErr_Format(PyExc_TypeError, "a DatasetReader is required, not %R",
        (PyObject *)Py_TYPE(reader));
    return NULL;
}

static bool reader_field(Opened *reader, PyObject *name, size_t *field) {
    Py_ssize_t size;
    const char *text =
        PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &size) : NULL;
    if (text && strlen(text) == (size_t)size &&
        !bags_reader_field(reader->source->reader, text, field, NULL))
        return true;
    PyErr_Clear();
    Py_XDECREF(PyObject_CallMethod((PyObject *)reader, "_refuse", "(O)", name));
    return false;
}

/* ---- datapoints ---- */

static PyObject *slot_item(Source *source, const Field *field, Row *row, size_t slot,
    size_t i, uint64_t index) {
    uint64_t datapoint = index + (field->sequence ? 0 : i);
    PyObject *out = decode(source->state, field, bags_row_bytes(&row->row, slot, i),
        (PyObject *)source, row, slot, i, datapoint);
    if (!out && field->how == HOW_CALL)
        place_error(true, "%S: field \"%s\": datapoint %llu", source->path,
            field->name_utf8, (unsigned long long)datapoint);
    return out;
}

/* Set the items of a list, starting at position `at`. On failure, returns false with an
 * exception, and releases the list. */
static bool slot_list(Source *source, const Field *field, Row *row, size_t slot,
    PyObject *list, uint64_t at, uint64_t index) {
    size_t count = bags_row_length(&row->row, slot);
    for (size_t i = 0; i < count; i++) {
        PyObject *item = i % 16 == 0 && PyErr_CheckSignals()
                             ? NULL
                             : slot_item(source, field, row, slot, i, index);
        if (!item || PyList_SetItem(list, (Py_ssize_t)(at + i), item)) {
            Py_DECREF(list);
            return false;
        }
    }
    return true;
}

/* The values in slot i of a row, starting with datapoint `index`. `list`: all of them
 * as a list; otherwise the single value. */
static PyObject *slot_value(Source *source, const Field *field, Row *row, size_t slot,
    bool list, uint64_t index) {
    if (!list)
        return slot_item(source, field, row, slot, 0, index);
    PyObject *out = PyList_New((Py_ssize_t)bags_row_length(&row->row, slot));
    return out && slot_list(source, field, row, slot, out, 0, index) ? out : NULL;
}

/* Convert a range or slice to a slice. NULL without an exception if it is neither. */
static PyObject *as_slice(PyObject *object) {
    if (PySlice_Check(object))
        return Py_NewRef(object);
    if (!PyObject_TypeCheck(object, &PyRange_Type))
        return NULL;
    OWNED PyObject *start = PyObject_GetAttrString(object, "start");
    OWNED PyObject *stop = PyObject_GetAttrString(object, "stop");
    OWNED PyObject *step = PyObject_GetAttrString(object, "step");
    return start && stop && step ? PySlice_New(start, stop, step) : NULL;
}

/* Get start, stop and step of a slice in a mask. False with an exception. */
static bool mask_slice(PyObject *slice, PyObject *mask, uint64_t numbers[3]) {
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(slice, &start, &stop, &step))
        return false;
    if (start < 0 || stop < 0 || step < 0) {
        PyErr_Format(
            PyExc_ValueError, "%R has negative numbers: not a valid mask", mask);
        return false;
    }
    numbers[0] = (uint64_t)start;
    numbers[1] = (uint64_t)(stop < start ? start : stop);
    numbers[2] = (uint64_t)step;
    return true;
}

/* Look a field up in a mask. Returns 1 to select it, 0 to skip it, -1 with an
 * exception. */
static int mask_select(
    Opened *reader, size_t number, PyObject *mask, bags_select *select) {
    uint64_t numbers[3];
    *select = bags_select_all(number);
    if (mask == Py_True)
        return 1;
    if (mask == Py_False || mask == Py_None)
        return 0;
    const Field *field = &reader->base.fields[number];
    OWNED PyObject *slice = field->sequence ? as_slice(mask) : NULL;
    if (slice && mask_slice(slice, mask, numbers)) {
        *select = bags_select_slice(number, numbers[0], numbers[1], numbers[2]);
        return 1;
    }
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError,
            "the mask of a %s must be True or False%s, not %R of %R",
            field->sequence ? "sequence"
            : field->video  ? "video"
                            : "plain field",
            field->sequence ? ", a range or a slice"
            : field->video  ? ", a range, a slice or a list of frames"
                            : "",
            mask, (PyObject *)Py_TYPE(mask));
    place_error(false, "%S: field \"%s\"", reader->base.path, field->name_utf8);
    return -1;
}

/* ---- frames of videos ---- */

/* Open the video in a datapoint's field. It belongs to the row. NULL with an
 * exception. */
static bags_mp4_reader *open_video(
    Source *source, Row *row, const Field *field, size_t number, uint64_t index) {
    bags_mp4_cache_options options = {.max_size = 16 << 20, .decoders = 4};
    const Far *far = load_far();
    bags_mp4_reader *video = NULL;
    bags_error err;
    if (!far)
        return NULL;
    if (!far->mp4) {
        PyErr_SetString(PyExc_TypeError, "this build has no codec for videos");
        return NULL;
    }
    WITHOUT_GIL({
        if (!row->videos)
            row->videos = far->video_cache(&options, &err);
        if (row->videos)
            video = far->video(row->videos, source->reader, index, number, 0, &err);
        if (!video && !text_in_message(err.message, bags_reader_path(source->reader)))
            format_fail_at(
                source->reader, field->name_utf8, index, UINT64_MAX, err.code, &err);
    });
    if (call_failed(source->state, video ? BAGS_OK : err.code, &err, source->path))
        return NULL;
    return video;
}

/* The frames selected by a mask: a slice, or a list of numbers. */
typedef struct Frames {
    uint64_t numbers[3]; /* start, stop, step */
    uint64_t *list;      /* otherwise `count` numbers; free with PyMem_Free */
    uint64_t count;
} Frames;

static bool take_frames(
    PyObject *path, const Field *field, PyObject *mask, Frames *out) {
    OWNED PyObject *slice = as_slice(mask);
    if (slice)
        return mask_slice(slice, mask, out->numbers);
    Py_ssize_t count = PyErr_Occurred() ? -1 : PySequence_Size(mask);
    if (count < 0)
        return false;
    out->count = (uint64_t)count;
    out->list = (uint64_t *)PyMem_Calloc((size_t)count + 1, sizeof *out->list);
    if (!out->list)
        return PyErr_NoMemory(), false;
    for (Py_ssize_t i = 0; i < count; i++) {
        OWNED PyObject *item = PySequence_GetItem(mask, i);
        if (item && PyBool_Check(item)) {
            PyErr_Format(PyExc_TypeError,
                "%S: field \"%s\": the mask of a video lists the numbers of frames, "
                "not "
                "%R",
                path, field->name_utf8, item);
            return false;
        }
        OWNED PyObject *number = item ? PyNumber_Index(item) : NULL;
        if (!number)
            return false;
        out->list[i] = PyLong_AsUnsignedLongLong(number);
        if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_IndexError, "%S: field \"%s\": frame %S out of range",
                path, field->name_utf8, number);
        }
        if (PyErr_Occurred())
            return false;
    }
    return true;
}

/* Decode frames to a uint8 array, n x H x W x 3. */
static PyObject *decode_frames(Source *source, const Field *field, uint64_t index,
    bags_mp4_reader *video, Frames *frames, bags_code *code, bags_error *err) {
    const Far *far = load_far();
    const bags_mp4_info *info = far->video_info(video);
    uint64_t *at = frames->numbers, count = frames->count, all = info->frames;
    if (!frames->list) {
        uint64_t stop = at[1] < all ? at[1] : all;
        count = at[0] < stop ? (stop - at[0] - 1) / at[2] + 1 : 0;
    }
    for (uint64_t i = 0; i < frames->count; i++)
        if (frames->list[i] >= all) {
            PyErr_Format(PyExc_IndexError,
                "%S: field \"%s\": datapoint %llu: frame %llu out of range (length "
                "%llu)",
                source->path, field->name_utf8, (unsigned long long)index,
                (unsigned long long)frames->list[i], (unsigned long long)all);
            return NULL;
        }
    uint64_t shape[] = {count, info->height, info->width, 3};
    bags_value value = bags_array(BAGS_DTYPE_UINT8, 4, shape, NULL);
    size_t each = count ? value.size / (size_t)count : 0;
    OWNED PyObject *data = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)value.size);
    if (!data)
        return NULL;
    char *to = PyByteArray_AsString(data);
    WITHOUT_GIL({
        if (!frames->list)
            *code = far->video_frames(
                video, at[0], at[1], at[2], to, value.size, NULL, err);
        for (uint64_t i = 0; i < frames->count && !*code; i++, to += each)
            *code = far->video_frames(
                video, frames->list[i], frames->list[i] + 1, 1, to, each, NULL, err);
    });
    return *code ? NULL : array_over(source->state, &value, data);
}

/* Read the frames of a datapoint's field that a mask selects. */
static PyObject *read_frames(
    Source *source, const Field *field, size_t number, uint64_t index, PyObject *mask) {
    AT_END(give_row) Row *row = take_row(source);
    Frames frames = {0};
    bags_code code = BAGS_OK;
    bags_error err;
    PyObject *out = NULL;
    bool good = row && take_frames(source->path, field, mask, &frames);
    if (!good && row)
        place_error(false, "%S: field \"%s\"", source->path, field->name_utf8);
    bags_mp4_reader *video =
        good ? open_video(source, row, field, number, index) : NULL;
    if (video)
        out = decode_frames(source, field, index, video, &frames, &code, &err);
    if (code && !text_in_message(err.message, bags_reader_path(source->reader)))
        format_fail_at(source->reader, field->name_utf8, index, UINT64_MAX, code, &err);
    if ((code || out) && call_failed(source->state, code, &err, source->path))
        Py_CLEAR(out);
    PyMem_Free(frames.list);
    return out;
}

/* True if a mask selects frames of a field. */
static bool is_frames(const Field *field, PyObject *mask) {
    return field->video && !field->sequence &&
           (PySlice_Check(mask) || PyList_Check(mask) || PyTuple_Check(mask) ||
               PyObject_TypeCheck(mask, &PyRange_Type));
}

/* ---- datapoints by masks ---- */

/* Read a datapoint. `selects` is NULL for all fields. No other call uses the row, even
 * if a decoder reads from the same reader. `videos` has, for each field, a mask of
 * frames or NULL; it is NULL if there are none. */
static PyObject *read_datapoint(Opened *reader, Source *source, uint64_t index,
    const bags_select *selects, size_t count, PyObject *const *videos) {
    AT_END(give_row) Row *row = take_row(source);
    bags_error err;
    bags_code code;
    if (!row)
        return NULL;
    WITHOUT_GIL(
        code = bags_reader_get(source->reader, index, selects, count, &row->row, &err));
    if (call_failed(source->state, code, &err, source->path))
        return NULL;
    PyObject *out = PyDict_New();
    size_t slots = selects ? count : reader->base.count, at = 0, i = 0;
    while (out && (at < slots || (videos && i < reader->base.count))) {
        /* In field order: frames come before the selected values of later fields. */
        size_t number = at < slots ? selects ? selects[at].field : at : SIZE_MAX;
        bool frames = videos && i < reader->base.count && i < number;
        Field *field = &reader->base.fields[frames ? i : number];
        OWNED PyObject *value = NULL;
        if (frames && !videos[i++])
            continue;
        if (frames)
            value = read_frames(source, field, i - 1, index, videos[i - 1]);
        else
            value = slot_value(source, field, row, at++, field->sequence, index);
        if (!value || PyDict_SetItem(out, field->name, value))
            Py_CLEAR(out);
    }
    return out;
}

/* Convert a dict of fields and masks to selections in field order. Returns how many
 * there are, or -1. `videos` is as for read_datapoint; its references belong to the
 * caller. */
static Py_ssize_t dict_selects(
    Opened *reader, PyObject *mask, bags_select *selects, PyObject **videos) {
    Py_ssize_t used = 0, found = 0;
    for (size_t i = 0; i < reader->base.count; i++) {
        /* OWNED, since an index in it may run any code, and change the mask. */
        OWNED PyObject *of =
            Py_XNewRef(PyDict_GetItemWithError(mask, reader->base.fields[i].name));
        bool frames = of && is_frames(&reader->base.fields[i], of);
        int chosen = of && !frames ? mask_select(reader, i, of, &selects[used]) : 0;
        if (frames)
            videos[i] = Py_NewRef(of);
        if (chosen < 0 || PyErr_Occurred())
            return -1;
        found += of != NULL;
        used += chosen;
    }
    if (found != PyDict_Size(mask)) /* one of the names is unknown */
        Py_XDECREF(PyObject_CallMethod((PyObject *)reader, "_check", "(O)", mask));
    return PyErr_Occurred() ? -1 : used;
}

/* The same for a tuple or list of names. */
static Py_ssize_t list_selects(Opened *reader, PyObject *mask, bags_select *selects) {
    Py_ssize_t count = PySequence_Size(mask), used = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        size_t number;
        OWNED PyObject *name = PySequence_GetItem(mask, i);
        if (!name || !reader_field(reader, name, &number))
            return -1;
        Py_ssize_t same = 0;
        while (same < used && selects[same].field != number)
            same++;
        selects[same] = bags_select_all(number);
        used += same == used;
    }
    return used;
}

static Py_ssize_t mask_selects(
    Opened *reader, PyObject *mask, bags_select *selects, PyObject **videos) {
    if (PyDict_Check(mask))
        return dict_selects(reader, mask, selects, videos);
    if (PyTuple_Check(mask) || PyList_Check(mask))
        return list_selects(reader, mask, selects);
    PyErr_Format(PyExc_TypeError,
        "%S: a mask must be a dict of fields, or a tuple of their names, not %R",
        reader->base.path, (PyObject *)Py_TYPE(mask));
    return -1;
}

/* The values of a field in datapoints start .. stop. A plain field takes a single
 * call. */
static PyObject *read_values(
    Source *source, Field *field, size_t number, uint64_t start, uint64_t stop) {
    bags_select whole = bags_select_all(number);
    AT_END(give_row) Row *row = take_row(source);
    bags_error err;
    bags_code code;
    PyObject *out = row ? PyList_New((Py_ssize_t)(stop - start)) : NULL;
    for (uint64_t i = start, next; out && i < stop; i = next) {
        next = i + (field->sequence ? 1 : read_step(source, stop - i));
        WITHOUT_GIL(code = field->sequence ? bags_reader_get(source->reader, i, &whole,
                                                 1, &row->row, &err)
                                           : bags_reader_get_range(source->reader, i,
                                                 next, number, &row->row, &err));
        if (call_failed(source->state, code, &err, source->path)) {
            Py_DECREF(out);
            return NULL;
        }
        if (!field->sequence) {
            if (!slot_list(source, field, row, 0, out, i - start, i))
                return NULL;
            continue;
        }
        PyObject *list = slot_value(source, field, row, 0, true, i);
        if (!list || PyList_SetItem(out, (Py_ssize_t)(i - start), list))
            Py_CLEAR(out);
    }
    return out;
}

/* _announce(numbers, names): request fields of datapoints at once, as uint64 in bytes, from
 * a server. The reads that follow report what is wrong. */
static PyObject *reader_announce(PyObject *self, PyObject *args) {
    Opened *reader = (Opened *)self;
    const char *numbers;
    Py_ssize_t size;
    PyObject *names;
    bags_error err;
    if (!PyArg_ParseTuple(args, "y#O!", &numbers, &size, &PyTuple_Type, &names))
        return NULL;
    OWNED Source *source = source_of(self);
    if (!source)
        return NULL;
    if (source->storage == Py_None || !source->storage)
        Py_RETURN_NONE;
    bags_select *selects =
        (bags_select *)PyMem_Calloc(reader->base.count + 1, sizeof *selects);
    Py_ssize_t count = selects ? list_selects(reader, names, selects) : -1;
    AT_END(give_row) Row *row = count < 0 ? NULL : take_row(source);
    if (row)
        WITHOUT_GIL((void)bags_reader_prefetch(source->reader,
            (const uint64_t *)(const void *)numbers, (size_t)size / sizeof(uint64_t),
            selects, (size_t)count, &row->row, &err));
    if (!selects)
        PyErr_NoMemory();
    PyMem_Free(selects);
    return row && !signal_raised() ? Py_NewRef(Py_None) : NULL;
}

/* True for what selects several datapoints: a slice, range, list or NumPy array. */
static bool is_several(PyObject *which) {
    if (PySlice_Check(which) || PyObject_TypeCheck(which, &PyRange_Type) ||
        PyList_Check(which))
        return true;
    if (PyLong_Check(which) || !PyObject_HasAttrString(which, "ndim"))
        return false;
    OWNED PyObject *dims = PyObject_GetAttrString(which, "ndim");
    bool several = dims && PyLong_Check(dims) && PyLong_AsLong(dims) != 0;
    PyErr_Clear();
    return several;
}

static PyObject *reader_subscript(PyObject *self, PyObject *key) {
    Opened *reader = (Opened *)self;
    bool masked = PyTuple_Check(key);
    bags_select few[8], *selects = few;
    PyObject *few_videos[8] = {0}, **videos = few_videos;
    PyObject *which = key, *mask = Py_None, *out = NULL;
    Py_ssize_t count = 0;
    uint64_t index;
    size_t fields = reader->base.count;
    if (masked &&
        !PyArg_ParseTuple(key, "OO;reader[...] takes an index, or an index and a mask",
            &which, &mask))
        return NULL;
    if (is_several(which))
        return PyObject_CallMethod(self, "_rows", masked ? "(OO)" : "(O)", which, mask);
    OWNED Source *source = source_of(self);
    if (!source)
        return NULL;
    if (masked && fields > 8) {
        selects = (bags_select *)PyMem_Calloc(fields, sizeof *selects);
        videos = (PyObject **)PyMem_Calloc(fields, sizeof *videos);
    }
    if (!selects || !videos)
        PyErr_NoMemory();
    else if (masked)
        count = mask_selects(reader, mask, selects, videos);
    if (selects && videos && count >= 0 && take_index(source, which, &index))
        out = read_datapoint(reader, source, index, masked ? selects : NULL,
            (size_t)count, masked ? videos : NULL);
    for (size_t i = 0; masked && videos && i < fields; i++)
        Py_XDECREF(videos[i]);
    if (selects != few)
        PyMem_Free(selects);
    if (videos != few_videos)
        PyMem_Free(videos);
    return out;
}

static PyObject *reader_item(PyObject *self, Py_ssize_t index) {
    OWNED Source *source = source_of(self);
    return source
               ? read_datapoint((Opened *)self, source, (uint64_t)index, NULL, 0, NULL)
               : NULL;
}

static PyObject *reader_items(PyObject *self, PyObject *args) {
    OWNED Source *source = source_of(self);
    PyObject *key, *name;
    uint64_t index, count;
    size_t field;
    bags_error err;
    bags_code code;
    if (!source || !PyArg_ParseTuple(args, "OO:items", &key, &name) ||
        !take_index(source, key, &index) || !reader_field((Opened *)self, name, &field))
        return NULL;
    AT_END(give_row) Row *row = take_row(source);
    if (!row)
        return NULL;
    WITHOUT_GIL(code = bags_reader_items(
                    source->reader, index, field, &row->row, &count, &err));
    return call_failed(source->state, code, &err, source->path)
               ? NULL
               : PyLong_FromUnsignedLongLong(count);
}

/* array(i, name, items=None) */
static PyObject *reader_array(PyObject *self, PyObject *args) {
    OWNED Source *source = source_of(self);
    Opened *reader = (Opened *)self;
    PyObject *key, *name, *items = Py_None;
    uint64_t index;
    size_t number;
    bags_error err;
    bags_code code;
    bags_value value;
    if (!source || !PyArg_ParseTuple(args, "OO|O:array", &key, &name, &items) ||
        !take_index(source, key, &index) || !reader_field(reader, name, &number))
        return NULL;
    bags_select select = bags_select_all(number);
    if (!reader->base.fields[number].sequence) {
        PyErr_Format(PyExc_TypeError,
            "%S: field \"%s\": a plain field; array is for the items of a sequence",
            source->path, reader->base.fields[number].name_utf8);
        return NULL;
    }
    if (items != Py_None && mask_select(reader, number, items, &select) != 1) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError,
                "%S: field \"%s\": a range or a slice of items is required, not %R",
                source->path, reader->base.fields[number].name_utf8, items);
        return NULL;
    }
    bool is_int = bags_view_is(bags_reader_type(source->reader, number)->name, "int");
    AT_END(give_row) Row *row = take_row(source);
    if (!row)
        return NULL;
    WITHOUT_GIL({
        code = bags_reader_get(source->reader, index, &select, 1, &row->row, &err);
        if (!code && !is_int)
            code = bags_row_array(&row->row, 0, &row->scratch, &value, &err);
    });
    if (call_failed(source->state, code, &err, source->path))
        return NULL;
    if (is_int)
        return integer_items(source, &select, index, row);
    const void *first = bags_row_bytes(&row->row, 0, 0).data;
    if (value.size == 0 || value.data != first || bags_row_owns(&row->row, first))
        return new_array(source->state, NULL, &value, false, false);
    OWNED PyObject *data =
        new_blob(source->state, (PyObject *)source, value.data, value.size);
    return array_over(source->state, &value, data);
}

/* _values(field, start, stop) */
static PyObject *reader_values(PyObject *self, PyObject *args) {
    OWNED Source *source = source_of(self);
    Opened *reader = (Opened *)self;
    Py_ssize_t field, start, stop;
    if (!source || !PyArg_ParseTuple(args, "nnn", &field, &start, &stop))
        return NULL;
    if (field < 0 || (size_t)field >= reader->base.count || start < 0 || stop < start)
        return PyErr_SetString(PyExc_IndexError, "no field, or no range of datapoints"),
               NULL;
    return read_values(source, &reader->base.fields[field], (size_t)field,
        (uint64_t)start, (uint64_t)stop);
}

static PyObject *reader_number_of(PyObject *self, PyObject *name) {
    OWNED Source *source = source_of(self);
    size_t field;
    return source && reader_field((Opened *)self, name, &field)
               ? PyLong_FromSize_t(field)
               : NULL;
}

/* ---- attributes ---- */

static PyObject *reader_info(PyObject *self, void *what) {
    OWNED Source *source = source_of(self);
    bags_info info;
    bags_error err;
    bags_code code;
    if (!source)
        return NULL;
    WITHOUT_GIL(code = bags_reader_info(source->reader, &info, NULL, &err));
    return call_failed(source->state, code, &err, source->path) ? NULL
           : what ? PyBool_FromLong(info.sharded)
                  : PyLong_FromUnsignedLongLong(info.size);
}

/* [size of each field's blobs] */
static PyObject *reader_sizes(PyObject *self, void *unused) {
    OWNED Source *source = source_of(self);
    size_t count = ((Opened *)self)->base.count;
    bags_info info;
    bags_error err;
    bags_code code;
    (void)unused;
    if (!source)
        return NULL;
    bags_field_info *fields =
        (bags_field_info *)PyMem_Calloc(count + 1, sizeof *fields);
    if (!fields)
        return PyErr_NoMemory();
    WITHOUT_GIL(code = bags_reader_info(source->reader, &info, fields, &err));
    PyObject *out = call_failed(source->state, code, &err, source->path)
                        ? NULL
                        : PyList_New((Py_ssize_t)count);
    for (size_t i = 0; out && i < count; i++) {
        PyObject *size = PyLong_FromUnsignedLongLong(fields[i].size);
        if (!size || PyList_SetItem(out, (Py_ssize_t)i, size))
            Py_CLEAR(out);
    }
    PyMem_Free(fields);
    return out;
}

static PyObject *reader_shards(PyObject *self, void *unused) {
    Source *source = ((Opened *)self)->source;
    size_t count;
    (void)unused;
    if (!source)
        return closed_error(self), NULL;
    bags_reader_shards(source->reader, &count);
    return PyLong_FromSize_t(count);
}

static PyObject *reader_source(PyObject *self, void *unused) {
    (void)unused;
    return (PyObject *)source_of(self);
}

static PyMethodDef reader_methods[] = {
    {"items", reader_items, METH_VARARGS,
        "items(i, name)\n--\n\n"
        "Number of items of a sequence in datapoint i, without reading them; 1\n"
        "of a plain field."},
    {"array", reader_array, METH_VARARGS,
        "array(i, name, items=None)\n--\n\n"
        "The items of a sequence in datapoint i, all of one size, as one array\n"
        "(n, *shape); items: a range or a slice of them. Read-only, and without a copy "
        "if\n"
        "the dataset is mapped. Decoders are not used."},
    {"_values", reader_values, METH_VARARGS, NULL},
    {"_announce", reader_announce, METH_VARARGS, NULL},
    {"_field", reader_number_of, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyGetSetDef reader_gets[] = {
    {"size", reader_info, NULL, "Bytes of all Bags.", NULL},
    {"sharded", reader_info, NULL, "True if it is a directory of shards.", (void *)1},
    {"shards", reader_shards, NULL, "Number of shards that are read.", NULL},
    {"_sizes", reader_sizes, NULL, NULL, NULL},
    {"_source", reader_source, NULL, NULL, NULL}, {0}};
static PyType_Slot reader_slots[] = {{Py_tp_init, reader_init},
    {Py_tp_methods, reader_methods}, {Py_tp_getset, reader_gets},
    {Py_mp_subscript, reader_subscript}, {Py_sq_item, reader_item}, {0, NULL}};
PyType_Spec reader_spec = {"bags._core.DatasetReader", sizeof(Opened), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, reader_slots};
