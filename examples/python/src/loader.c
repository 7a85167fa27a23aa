/* loader.c - Loader: shuffled batches of arrays, made by threads of the C loader. */
#include "core.h"

#include <structmember.h>
#include <time.h>

typedef struct Loader Loader;

/* The user's functions for a field, and the loader they belong to. */
typedef struct Callback {
    Loader *loader;
    PyObject *decode, *draw;
} Callback;

struct Loader {
    PyObject_HEAD State *state;
    PyObject *path;      /* of the first dataset */
    bags_loader *loader; /* NULL: closed */
    Pool *pool;          /* for arrays */
    /* Only one thread at a time may use the loader. While the owner waits for others to
     * close the loader, it is `pausing`, and signal handlers may use the loader. */
    PyThread_type_lock lock;
    unsigned long owner;
    unsigned depth;
    bool pausing;
    uint64_t turn; /* incremented by every change of the position */
    /* The position: the next batch in an epoch of `count` batches (UINT64_MAX if
     * packed). */
    unsigned long long epoch, batch, count, skipped, iteration;
    bool packed, resumed;
    bags_buffer indices; /* a batch's indices, as numbers */
    bool taken;          /* the batch that the C loader shows has been returned */
    unsigned calls;      /* running calls of user functions; protected by the GIL */
    bool closing;
    PyObject *sources; /* tuple; keeps the readers open */
    PyObject *fields;  /* tuple; what the options point to, see set_fields */
    PyObject *sampler; /* a function, or None */
    PyObject *text;    /* bytes, one per field: nonzero for str instead of bytes */
    bags_tokens *tokens;
    bags_loader_videos videos;
    bags_loader_device_videos device_videos;
    bags_cuda *cuda; /* with the option device */
    bags_loader_device device;
    /* Tensors taken from a batch whose return was interrupted; and the batch. */
    PyObject *on_device; /* dict, or NULL */
    unsigned long long on_device_epoch, on_device_batch, on_cpu;
    Callback *callbacks;
    unsigned process;
    PyObject *raised; /* list: exceptions of callbacks; bags_error.system counts them */
    bool noted;       /* the error that made the loader fail already names the place */
};

/* ---- callbacks in C threads ---- */

/* Convert a function's result to a value in `scratch`. On failure, sets an
 * exception. */
static void returned_value(
    State *state, PyObject *object, bags_buffer *scratch, bags_value *value) {
    AT_END(arena_free) Arena arena = {0};
    if (arena_any(state, &arena, object))
        return;
    const bags_value *from = arena.values;
    size_t shape = from->dims * sizeof *from->shape;
    if (bags_buffer_reserve(scratch, shape + from->size + 64, NULL)) {
        PyErr_NoMemory();
        return;
    }
    *value = *from; /* the data comes first, where it is aligned */
    size_t at = (from->size + 15) & ~(size_t)15;
    if (from->size)
        memcpy(scratch->data, from->data, from->size);
    if (shape)
        memcpy(scratch->data + at, from->shape, shape);
    value->data = scratch->data;
    value->shape = (const uint64_t *)(const void *)(scratch->data + at);
}

/* The loader whose callback this thread is running. It cannot be used in the callback,
 * since the thread would wait for itself. */
static __thread Loader *calling;

/* Keep the exception of a callback. It is not damage, so its code is not among those
 * skipped by skip_damaged. */
static bags_code keep_raised(Loader *loader, const char *name, bags_error *err) {
    OWNED PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    bags_code code = bags_fail(err, BAGS_ERROR_STATE, "%s raised this", name);
    if (PyList_Append(loader->raised, value))
        PyErr_Clear();
    else
        err->system = (int)PyList_Size(loader->raised);
    return code;
}

/* Call before a user function; acquires the GIL. If it returns false, do not call the
 * function. */
static bool begin_call(Loader *loader, PyGILState_STATE *gil, bags_error *err) {
    *gil = PyGILState_Ensure();
    if (loader->closing) {
        PyGILState_Release(*gil);
        return bags_fail(err, BAGS_ERROR_STATE, "the loader is being closed"), false;
    }
    calling = loader;
    loader->calls++;
    return true;
}

/* Call after the function. `name` is the function's name, for exceptions. */
static bags_code end_call(Loader *loader, PyGILState_STATE gil, PyObject *out,
    const char *name, bags_error *err) {
    bags_code code = PyErr_Occurred() ? keep_raised(loader, name, err) : BAGS_OK;
    Py_XDECREF(out);
    calling = NULL;
    loader->calls--;
    PyGILState_Release(gil);
    return code;
}

static bags_code call_decode(void *user, const bags_load_item *item,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    const Callback *callback = (const Callback *)user;
    PyGILState_STATE gil;
    if (!begin_call(callback->loader, &gil, err))
        return BAGS_ERROR_STATE;
    PyObject *out = PyObject_CallFunction(callback->decode, "y#",
        (const char *)item->blob.data, (Py_ssize_t)item->blob.size);
    if (out)
        returned_value(callback->loader->state, out, scratch, value);
    return end_call(callback->loader, gil, out, "decode", err);
}

static bags_code call_draw(void *user, const bags_load_item *item,
    const bags_image *image, bags_load_draw *draw, bags_error *err) {
    const Callback *callback = (const Callback *)user;
    PyGILState_STATE gil;
    if (!begin_call(callback->loader, &gil, err))
        return BAGS_ERROR_STATE;
    PyObject *out = PyObject_CallFunction(callback->draw, "y#KKKKIII",
        (const char *)draw, (Py_ssize_t)sizeof *draw,
        (unsigned long long)item->pick.dataset, (unsigned long long)item->pick.index,
        (unsigned long long)item->item, (unsigned long long)item->random, image->width,
        image->height, (unsigned)image->channels);
    if (out && out != Py_None)
        take_struct(draw, sizeof *draw, out);
    return end_call(callback->loader, gil, out, "draw", err);
}

/* The sampler returns pairs of 64-bit numbers, dataset and index, as bytes. */
static bags_code call_sampler(void *user, uint64_t epoch, uint64_t start, size_t count,
    bags_pick *picks, bags_error *err) {
    Loader *loader = (Loader *)user;
    PyGILState_STATE gil;
    if (!begin_call(loader, &gil, err))
        return BAGS_ERROR_STATE;
    PyObject *out = PyObject_CallFunction(loader->sampler, "KKn", epoch, start, count);
    if (out)
        take_struct(picks, count * sizeof *picks, out);
    return end_call(loader, gil, out, "sampler", err);
}

/* ---- opening ---- */

const bags_loader_images loader_images = {bags_resample,
#ifdef BAGS_WITH_JPEG
    bags_jpeg_probe, bags_jpeg_decode,
#else
    NULL, NULL,
#endif
#ifdef BAGS_WITH_PNG
    bags_png_probe, bags_png_decode
#else
    NULL, NULL
#endif
};

/* Get the sources of the readers, and the C readers. NULL with an exception. */
static const bags_reader **loader_readers(Loader *loader, PyObject *list) {
    Py_ssize_t count = PyList_Size(list);
    const bags_reader **readers =
        (const bags_reader **)PyMem_Calloc((size_t)count + 1, sizeof *readers);
    loader->sources = readers ? PyTuple_New(count) : PyErr_NoMemory();
    for (Py_ssize_t i = 0; loader->sources && i < count; i++) {
        Source *source = reader_source_of(loader->state, PyList_GetItem(list, i));
        if (source)
            readers[i] = source->reader;
        if (!source || PyTuple_SetItem(loader->sources, i, (PyObject *)source))
            Py_CLEAR(loader->sources);
    }
    if (loader->sources)
        return readers;
    PyMem_Free(readers);
    return NULL;
}

/* Each field is (name, options, shape, warp, jitter, offsets, seconds, times, decode,
 * draw, mean, std), as prepared by bags/loader.py; None if an option is missing. The
 * objects live as long as the loader. */
static bool set_fields(Loader *loader, bags_load_field *fields) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(loader->fields); i++) {
        bags_load_field *to = &fields[i];
        Callback *callback = &loader->callbacks[i];
        const char *name, *shape, *warp, *jitter, *offsets, *seconds, *times;
        const char *mean, *std;
        Py_ssize_t shape_size, warp_size, jitter_size, offsets_size, seconds_size;
        Py_ssize_t mean_size, std_size;
        PyObject *packed;
        if (!PyArg_Parse(PyTuple_GetItem(loader->fields, i), "(sOz#z#z#z#z#zOOz#z#)",
                &name, &packed, &shape, &shape_size, &warp, &warp_size, &jitter,
                &jitter_size, &offsets, &offsets_size, &seconds, &seconds_size, &times,
                &callback->decode, &callback->draw, &mean, &mean_size, &std,
                &std_size) ||
            !take_struct(to, sizeof *to, packed))
            return false;
        if (mean && std && mean_size != std_size) {
            PyErr_Format(
                PyExc_ValueError, "field \"%s\": mean and std differ in length", name);
            return false;
        }
        callback->loader = loader;
        to->user = callback;
        to->name = name;
        to->shape = (const uint64_t *)(const void *)shape;
        to->dims = shape ? (size_t)shape_size / 8 : 0;
        to->warp = (const bags_warp_options *)(const void *)warp;
        to->jitter = (const bags_jitter_options *)(const void *)jitter;
        to->element_mean = (const double *)(const void *)mean;
        to->element_std = (const double *)(const void *)std;
        to->elements = (size_t)(mean ? mean_size : std ? std_size : 0) / sizeof(double);
        to->offsets = (const int64_t *)(const void *)offsets;
        to->offset_count = offsets ? (size_t)offsets_size / 8 : 0;
        to->seconds = (const double *)(const void *)seconds;
        to->second_count = seconds ? (size_t)seconds_size / 8 : 0;
        to->times = times;
        to->decode = callback->decode != Py_None ? call_decode : NULL;
        to->draw = callback->draw != Py_None ? call_draw : NULL;
    }
    return true;
}

/* Raise the error of a C call. The message may begin with the path of any dataset. If
 * it does not, and `place` is set, the path of the first one is added. Returns NULL. */
static PyObject *loader_raise(Loader *loader, const bags_error *err, bool place) {
    size_t size = 0;
    for (Py_ssize_t i = 0; !size && i < PyTuple_Size(loader->sources); i++)
        size = path_in_message(
            err->message, ((Source *)PyTuple_GetItem(loader->sources, i))->path);
    raise_error_at(loader->state, err, NULL, size);
    if (place && !size)
        place_error(false, "%S", loader->path);
    return NULL;
}

/* `of` is (field, options, names of parallel fields). */
static bool loader_tokens(
    Loader *loader, const bags_reader *const *readers, size_t count, PyObject *of) {
    bags_tokens_options options;
    const char *field, *names[15];
    PyObject *packed, *parallel;
    bags_error err;
    if (!PyArg_Parse(of, "(zOO!)", &field, &packed, &PyTuple_Type, &parallel) ||
        !take_struct(&options, sizeof options, packed))
        return false;
    size_t used = (size_t)PyTuple_Size(parallel);
    if (used > 15)
        return PyErr_SetString(PyExc_ValueError, "more than 15 fields"), false;
    for (size_t i = 0; i < used; i++) {
        names[i] =
            PyUnicode_AsUTF8AndSize(PyTuple_GetItem(parallel, (Py_ssize_t)i), NULL);
        if (!names[i])
            return false;
    }
    loader->packed = options.pack;
    options.field = field;
    options.parallel = used ? names : NULL;
    options.parallel_count = used;
    WITHOUT_GIL(loader->tokens = bags_tokens_open(readers, count, &options, &err));
    if (!loader->tokens)
        loader_raise(loader, &err, false);
    return !PyErr_Occurred();
}

/* `rows` contains, for each dataset, None or (is it a range, 64-bit numbers). */
static bool set_rows(bags_selection *to, PyObject *rows) {
    for (Py_ssize_t i = 0; i < PyList_Size(rows); i++, to++) {
        PyObject *part = PyList_GetItem(rows, i);
        const char *data;
        Py_ssize_t size;
        int ranges;
        if (part == Py_None)
            continue;
        if (!PyArg_Parse(part, "(py#)", &ranges, &data, &size))
            return false;
        to->kind = ranges ? BAGS_SELECTION_RANGES : BAGS_SELECTION_INDICES;
        to->numbers = (const uint64_t *)(const void *)data;
        to->count = (size_t)size / (ranges ? 16 : 8);
    }
    return true;
}

/* `of` is (clock, field with its times or None, options, is any field a video). */
static bool set_frames(bags_frames_options *to, PyObject *of, bool *videos) {
    const char *clock, *times;
    PyObject *packed;
    int has_videos;
    if (!PyArg_Parse(of, "(szOp)", &clock, &times, &packed, &has_videos) ||
        !take_struct(to, sizeof *to, packed))
        return false;
    to->clock = clock;
    to->times = times;
    *videos = has_videos;
    return true;
}

/* Set the functions for video frames, and for decoding them on a GPU. Loading them takes
 * long. */
static bool set_videos(Loader *loader, bags_loader_options *options, bool on_device) {
    bags_loader_videos *to = &loader->videos;
    bags_loader_device_videos *made = &loader->device_videos;
    const Far *far = load_far();
    if (!far || !far->mp4)
        return far != NULL;
    to->open = far->video_cache;
    to->close = far->video_cache_close;
    to->get = far->video;
    to->info = far->video_info;
    to->read = far->video_frames;
    to->part = far->video_part;
    options->videos = to;
    made->probe = bags_cuda_probe_video;
    made->make = bags_cuda_make_frames;
    made->place = far->video_place;
    made->packet = far->video_packet;
    options->device_videos = on_device ? made : NULL;
    return true;
}

/* Open a GPU. */
static bool set_device(
    Loader *loader, bags_loader_options *options, Py_ssize_t number) {
    const bags_loader_device functions = {NULL, bags_cuda_take, bags_cuda_give,
        bags_cuda_decoder_open, bags_cuda_decoder_close, bags_cuda_probe,
        bags_cuda_make};
    bags_cuda_options of_gpu = {0};
    bags_error err;
    of_gpu.device = (uint32_t)number;
    WITHOUT_GIL(loader->cuda = bags_cuda_open(&of_gpu, &err));
    if (!loader->cuda)
        return loader_raise(loader, &err, true), false;
    loader->device = functions;
    loader->device.cuda = loader->cuda;
    options->device = &loader->device;
    return true;
}

/* Open the loader, once memory for everything is allocated. */
static bool loader_open(Loader *loader, PyObject *list, PyObject *tokens,
    PyObject *frames, PyObject *rows, Py_ssize_t device, bags_loader_options *options,
    bags_load_field *fields, bags_selection *selections) {
    size_t datasets = (size_t)PyList_Size(list);
    bags_frames_options around;
    const bags_reader **readers = loader_readers(loader, list);
    bags_error err;
    bool good = readers && set_fields(loader, fields);
    if (good && tokens != Py_None) {
        good = loader_tokens(loader, readers, datasets, tokens);
        options->tokens = loader->tokens;
    }
    if (good && frames != Py_None) {
        bool videos = false;
        good = set_frames(&around, frames, &videos) &&
               (!videos || set_videos(loader, options, device >= 0));
        options->frames = &around;
    }
    if (good && rows != Py_None) {
        good = set_rows(selections, rows);
        options->order.selections = selections;
    }
    options->field_count = (size_t)PyTuple_Size(loader->fields);
    options->fields = options->field_count ? fields : NULL;
    options->images = &loader_images;
    good = good && (device < 0 || set_device(loader, options, device));
    if (good) {
        WITHOUT_GIL(
            loader->loader = bags_loader_open(readers, datasets, options, &err));
        if (!loader->loader)
            loader_raise(loader, &err, true);
    }
    PyMem_Free(readers);
    loader->count = loader->packed   ? UINT64_MAX
                    : loader->loader ? bags_loader_batches(loader->loader)
                                     : 0;
    return loader->loader != NULL;
}

/* _core.Loader(readers, options, fields, text, tokens, frames, weights, rows, sampler,
 * length, hash, GPU or -1), with arguments prepared by bags/loader.py. */
static int loader_init(PyObject *self, PyObject *args, PyObject *unused) {
    Loader *loader = (Loader *)self;
    PyObject *list, *packed, *fields, *text, *tokens, *frames, *rows, *sampler;
    const char *weights;
    Py_ssize_t weights_size, device;
    unsigned long long sampler_length, sampler_hash;
    bags_loader_options options;
    (void)unused;
    if (!PyArg_ParseTuple(args, "O!OO!SOOz#OOKKn", &PyList_Type, &list, &packed,
            &PyTuple_Type, &fields, &text, &tokens, &frames, &weights, &weights_size,
            &rows, &sampler, &sampler_length, &sampler_hash, &device) ||
        !take_struct(&options, sizeof options, packed))
        return -1;
    Py_ssize_t datasets = PyList_Size(list);
    if (loader->state || datasets == 0 ||
        (rows != Py_None && (!PyList_Check(rows) || PyList_Size(rows) != datasets))) {
        PyErr_SetString(loader->state ? PyExc_TypeError : PyExc_ValueError,
            loader->state ? "__init__ was called before" : "no dataset");
        return -1;
    }
    loader->state = state_of(Py_TYPE(self));
    loader->path = PyObject_GetAttrString(PyList_GetItem(list, 0), "path");
    loader->process = this_process();
    loader->fields = Py_NewRef(fields);
    loader->text = Py_NewRef(text);
    loader->sampler = Py_NewRef(sampler);
    loader->raised = PyList_New(0);
    loader->lock = PyThread_allocate_lock();
    loader->pool = pool_open();
    size_t count = (size_t)PyTuple_Size(fields) + 1;
    loader->callbacks = (Callback *)PyMem_Calloc(count, sizeof *loader->callbacks);
    if (!loader->path || !loader->raised)
        return -1;
    if (!loader->lock || !loader->pool || !loader->callbacks)
        return PyErr_NoMemory(), -1;
    if (options.batch == 0)
        PyErr_Format(PyExc_ValueError, "%S: batch: 0 (minimum 1)", loader->path);
    if (weights && weights_size != datasets * (Py_ssize_t)sizeof(double))
        PyErr_Format(PyExc_ValueError, "%S: weights: %zd for %zd datasets",
            loader->path, weights_size / (Py_ssize_t)sizeof(double), datasets);
    if (PyErr_Occurred())
        return -1;
    options.order.weights = (const double *)(const void *)weights;
    if (sampler != Py_None) {
        options.sampler = call_sampler;
        options.sampler_user = loader;
        options.sampler_length = sampler_length;
        options.sampler_hash = sampler_hash;
    }
    bags_load_field *of = (bags_load_field *)PyMem_Calloc(count, sizeof *of);
    bags_selection *selections =
        (bags_selection *)PyMem_Calloc((size_t)datasets, sizeof *selections);
    bool good = of && selections;
    if (!good)
        PyErr_NoMemory();
    else
        good = loader_open(
            loader, list, tokens, frames, rows, device, &options, of, selections);
    PyMem_Free(of);
    PyMem_Free(selections);
    return good ? 0 : -1;
}

/* ---- batches ---- */

static PyObject *tensor_values(State *state, const bags_tensor *tensor, bool text) {
    PyObject *out = PyList_New((Py_ssize_t)tensor->items);
    const unsigned char *data = (const unsigned char *)tensor->data;
    for (uint64_t i = 0; out && i < tensor->items; i++) {
        PyObject *item;
        const bags_value *value = tensor->values ? &tensor->values[i] : NULL;
        if (value && value->kind == BAGS_KIND_ARRAY) {
            item = new_array(state, NULL, value, false, true);
        } else if (value && value->kind == BAGS_KIND_UINT) { /* returned by decode */
            item = PyLong_FromUnsignedLongLong(value->uint);
        } else if (value && value->kind == BAGS_KIND_INT) {
            item = PyLong_FromLongLong(value->sint);
        } else if (value) {
            item = PyBytes_FromStringAndSize(
                (const char *)value->data, (Py_ssize_t)value->size);
        } else {
            const char *start = (const char *)data + tensor->ends[i];
            Py_ssize_t size = (Py_ssize_t)(tensor->ends[i + 1] - tensor->ends[i]);
            item = text ? PyUnicode_DecodeUTF8(start, size, NULL)
                        : PyBytes_FromStringAndSize(start, size);
        }
        if (!item || PyList_SetItem(out, (Py_ssize_t)i, item))
            Py_CLEAR(out);
    }
    return out;
}

/* The items of a sequence or window, grouped by datapoint, from a list or an array. */
static PyObject *tensor_items(
    PyObject *all, const bags_batch *batch, const bags_tensor *tensor) {
    PyObject *out = PyList_New((Py_ssize_t)batch->length);
    for (size_t i = 0; out && i < batch->length; i++) {
        uint64_t first, count;
        (void)bags_tensor_get(batch, tensor, i, &first, &count);
        PyObject *part =
            PySequence_GetSlice(all, (Py_ssize_t)first, (Py_ssize_t)(first + count));
        if (!part || PyList_SetItem(out, (Py_ssize_t)i, part))
            Py_CLEAR(out);
    }
    return out;
}

static void give_tensor(PyObject *capsule) {
    pool_give(PyCapsule_GetPointer(capsule, NULL));
}

/* Make a copy, since C reuses its memory. */
static PyObject *tensor_array(Loader *loader, const bags_tensor *tensor) {
    void *data = tensor->size ? pool_take(loader->pool, tensor->size) : NULL;
    bags_value value = bags_array(tensor->dtype, tensor->dims, tensor->shape, data);
    if (!data && tensor->size)
        return PyErr_NoMemory();
    if (!data)
        return new_array(loader->state, NULL, &value, false, true);
    memcpy(data, tensor->data, tensor->size);
    OWNED PyObject *owner = PyCapsule_New(data, NULL, give_tensor);
    if (owner)
        return new_array(loader->state, owner, &value, true, true);
    pool_give(data);
    return NULL;
}

/* The indices of a batch: (n,) for datapoints; (n, 2) with episode and frame for
 * frames; (pieces, 3) with document, first token and token count for packed rows. With
 * several datasets, the dataset comes first. */
static PyObject *batch_indices(Loader *loader, const bags_batch *batch) {
    bool several = PyTuple_Size(loader->sources) > 1, packed = batch->pieces != NULL;
    size_t columns = (packed ? 3u : batch->frames ? 2u : 1u) + several;
    uint64_t first = packed ? batch->rows[0] : 0;
    uint64_t count = packed ? batch->rows[batch->length] - first : batch->length;
    bags_tensor all;
    bags_error err;
    memset(&all, 0, sizeof all);
    all.size = (size_t)count * columns * sizeof(uint64_t);
    if (bags_buffer_reserve(&loader->indices, all.size + 1, &err))
        return PyErr_NoMemory();
    uint64_t *to = (uint64_t *)(void *)loader->indices.data;
    for (uint64_t i = 0; i < count; i++) {
        const bags_piece *piece = packed ? &batch->pieces[first + i] : NULL;
        if (several)
            *to++ = piece ? piece->dataset : batch->picks[i].dataset;
        *to++ = piece ? piece->document : batch->picks[i].index;
        if (piece) {
            *to++ = piece->first;
            *to++ = piece->length;
        } else if (batch->frames)
            *to++ = batch->frames[i];
    }
    all.dtype = BAGS_DTYPE_INT64;
    all.data = loader->indices.data;
    all.shape[all.dims++] = all.items = count;
    if (columns > 1)
        all.shape[all.dims++] = columns;
    PyObject *array = tensor_array(loader, &all);
    if (!array || !packed)
        return array;
    PyObject *rows = PyList_New((Py_ssize_t)batch->length);
    for (size_t i = 0; rows && i < batch->length; i++) {
        PyObject *row = PySequence_GetSlice(array, (Py_ssize_t)(batch->rows[i] - first),
            (Py_ssize_t)(batch->rows[i + 1] - first));
        if (!row || PyList_SetItem(rows, (Py_ssize_t)i, row))
            Py_CLEAR(rows);
    }
    Py_DECREF(array);
    return rows;
}

/* Get tensor number i, on a GPU, of a batch. It can only be taken once, so it is
 * kept until the batch is returned. */
static PyObject *tensor_on_device(Loader *loader, const bags_batch *batch, size_t i) {
    const bags_tensor *tensor = &batch->tensors[i];
    if (loader->on_device && (loader->on_device_epoch != batch->epoch ||
                                 loader->on_device_batch != batch->batch))
        Py_CLEAR(loader->on_device);
    if (!loader->on_device)
        loader->on_device = PyDict_New();
    if (!loader->on_device)
        return NULL;
    loader->on_device_epoch = batch->epoch;
    loader->on_device_batch = batch->batch;
    PyObject *kept = PyDict_GetItemString(loader->on_device, tensor->name);
    if (kept)
        return Py_NewRef(kept);
    if (tensor->offsets)
        return PyErr_Format(PyExc_TypeError,
            "field \"%s\": with device, a sequence of images needs a window",
            tensor->name);
    PyObject *out =
        new_device_tensor(loader->state, loader->cuda, loader->loader, batch, i);
    if (out && PyDict_SetItemString(loader->on_device, tensor->name, out))
        Py_CLEAR(out);
    return out;
}

static PyObject *tensor_object(
    Loader *loader, const bags_batch *batch, const bags_tensor *tensor, bool text) {
    bool listed = tensor->values || tensor->ends;
    PyObject *all = listed ? tensor_values(loader->state, tensor, text)
                           : tensor_array(loader, tensor);
    bool windowed = listed && tensor->dims > 1; /* [n, window] */
    if (!all || !(tensor->offsets || windowed))
        return all;
    PyObject *out = tensor_items(all, batch, tensor);
    Py_DECREF(all);
    return out;
}

#define KEPT 6 /* batches whose memory is kept for later ones */

static PyObject *batch_dict(Loader *loader, const bags_batch *batch) {
    PyObject *out = PyDict_New();
    size_t size = 0;
    for (size_t i = 0; i < batch->count; i++)
        size += batch->tensors[i].size;
    size += batch->length * 3 * sizeof(uint64_t);
    pool_limit(loader->pool, KEPT * size);
    const char *texts = PyBytes_AsString(loader->text);
    size_t fields = (size_t)PyBytes_Size(loader->text);
    for (size_t i = 0; out && i < batch->count; i++) {
        OWNED PyObject *value = batch->tensors[i].on_device
                                    ? tensor_on_device(loader, batch, i)
                                    : tensor_object(loader, batch, &batch->tensors[i],
                                          i < fields && texts[i]);
        if (!value || PyDict_SetItemString(out, batch->tensors[i].name, value))
            Py_CLEAR(out);
    }
    OWNED PyObject *indices = out ? batch_indices(loader, batch) : NULL;
    if (out && (!indices || PyDict_SetItemString(out, "indices", indices)))
        Py_CLEAR(out);
    return out;
}

/* Raise an exception if the loader cannot be used, because it is closed or because this
 * is the child of a fork, where its threads do not exist. */
static bool loader_ready(Loader *loader) {
    if (calling == loader)
        PyErr_Format(PyExc_RuntimeError, "%S: a function of a Loader cannot use it",
            loader->path);
    else if (!loader->loader || loader->closing)
        closed_error((PyObject *)loader);
    else if (loader->process != this_process())
        PyErr_Format(PyExc_RuntimeError,
            "%S: a Loader cannot be used in a child made by fork(), since its threads "
            "are "
            "in the parent; open it in the child",
            loader->path);
    return !PyErr_Occurred();
}

/* Lock the loader. False with an exception. */
static bool loader_lock(Loader *loader) {
    unsigned long thread = PyThread_get_thread_ident();
    if (loader->owner == thread) { /* called by code that interrupted this thread */
        if (!loader->pausing)
            PyErr_Format(PyExc_RuntimeError,
                "%S: this thread is already making a batch of the Loader",
                loader->path);
    } else if (lock_or_signal(loader->lock)) {
        loader->owner = thread;
    }
    if (PyErr_Occurred())
        return false;
    loader->depth++;
    loader->pausing = false;
    return true;
}

static void loader_unlock(Loader *loader) {
    loader->pausing = --loader->depth > 0;
    if (loader->depth > 0)
        return;
    loader->owner = 0;
    PyThread_release_lock(loader->lock);
}

/* Begin a call, and lock the loader. False with an exception. */
static bool loader_begin(Loader *loader) {
    const bags_batch *batch;
    if (!loader_ready(loader) || !loader_lock(loader))
        return false;
    if (!loader_ready(loader)) { /* closed in the meantime */
        loader_unlock(loader);
        return false;
    }
    if (loader->taken)
        (void)bags_loader_next(loader->loader, &batch, NULL); /* does not wait */
    loader->taken = false;
    return true;
}

static PyObject *loader_fail(Loader *loader, bags_error *err) {
    PyObject *raised = err->code == BAGS_ERROR_STATE && err->system > 0
                           ? PyList_GetItem(loader->raised, err->system - 1)
                           : NULL;
    if (!raised)
        return loader_raise(loader, err, false);
    /* Every later call raises the exception again. */
    PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
    if (!loader->noted)
        place_error(true, "%s", err->message);
    loader->noted = true;
    return NULL;
}

/* End a call. Returns true, with an exception, if it failed. */
static bool loader_failed(Loader *loader, bags_code code, bags_error *err) {
    loader_unlock(loader);
    if (code && !PyErr_Occurred())
        loader_fail(loader, err);
    return PyErr_Occurred() != NULL;
}

/* The same, but returns `out`, or NULL with an exception. */
static PyObject *loader_end(
    Loader *loader, bags_code code, bags_error *err, PyObject *out) {
    if (!loader_failed(loader, code, err))
        return out;
    Py_XDECREF(out);
    return NULL;
}

/* __next__. A call that is interrupted by a signal changes nothing: a batch counts as
 * returned only when its dict is complete and no handler has raised an exception. After
 * that, almost nothing remains to be done, so the caller receives the batch before the
 * next signal arrives. Handlers may use, move or close the loader. The number of packed
 * batches in an epoch becomes known when the first batch of the next epoch is
 * available. */
static PyObject *loader_next(PyObject *self) {
    Loader *loader = (Loader *)self;
    for (;;) {
        const bags_batch *batch = NULL;
        OWNED PyObject *out = NULL;
        bags_error err;
        bags_code code = BAGS_OK;
        bool late = false;
        if (!loader_begin(loader))
            return NULL;
        bool ends = loader->batch >= loader->count;
        if (!ends)
            WITHOUT_GIL(
                code = bags_loader_peek(loader->loader, 0.05, &batch, &late, &err));
        ends = !batch || (loader->packed && batch->epoch != loader->epoch);
        if (!code && !ends)
            out = batch_dict(loader, batch);
        uint64_t turn = loader->turn;
        unsigned long long epoch = batch ? batch->epoch : loader->epoch + 1;
        unsigned long long number = ends ? 0 : batch->batch + 1;
        unsigned long long skipped = ends ? 0 : batch->skipped;
        unsigned long long on_cpu = ends ? 0 : batch->on_cpu;
        if (loader_failed(loader, code, &err) || PyErr_CheckSignals())
            return NULL;
        if (late || turn != loader->turn)
            continue;
        loader->turn++;
        loader->resumed = false;
        loader->taken = !ends;
        loader->epoch = epoch;
        loader->batch = number;
        loader->skipped += skipped;
        loader->on_cpu += on_cpu;
        Py_CLEAR(loader->on_device);
        return Py_XNewRef(out);
    }
}

/* iter(loader): after load_state_dict, continues the epoch. Otherwise, if the current
 * epoch was left early, starts the next one. */
typedef struct Iteration {
    PyObject_HEAD Loader *loader;
    unsigned long long number;
} Iteration;

static PyObject *loader_iter(PyObject *self) {
    Loader *loader = (Loader *)self;
    bags_error err;
    bags_code code = BAGS_OK;
    Iteration *iteration =
        loader_ready(loader) ? (Iteration *)new_object(loader->state->iteration) : NULL;
    if (!iteration)
        return NULL;
    iteration->loader = (Loader *)Py_NewRef(self);
    if (!loader_begin(loader)) {
        Py_DECREF(iteration);
        return NULL;
    }
    if (loader->batch && !loader->resumed) {
        WITHOUT_GIL(
            code = bags_loader_seek(loader->loader, loader->epoch + 1, 0, &err));
        loader->turn++;
        loader->epoch += !code;
        loader->batch = code ? loader->batch : 0;
    }
    iteration->number = ++loader->iteration;
    return loader_end(loader, code, &err, (PyObject *)iteration);
}

static PyObject *iteration_next(PyObject *self) {
    Iteration *iteration = (Iteration *)self;
    Loader *loader = iteration->loader;
    if (!loader)
        return NULL;
    if (iteration->number != loader->iteration) {
        PyErr_SetString(
            PyExc_RuntimeError, "another iteration of this Loader has begun");
        return NULL;
    }
    PyObject *out = PyIter_Next((PyObject *)loader);
    if (!out && !PyErr_Occurred())
        Py_CLEAR(iteration->loader);
    return out;
}

static int iteration_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Iteration *)self)->loader);
    return 0;
}

static int iteration_clear(PyObject *self) {
    Py_CLEAR(((Iteration *)self)->loader);
    return 0;
}

static void iteration_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    iteration_clear(self);
    free_object(self);
}

static PyType_Slot iteration_slots[] = {{Py_tp_dealloc, iteration_dealloc},
    {Py_tp_traverse, iteration_traverse}, {Py_tp_clear, iteration_clear},
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, iteration_next}, {0, NULL}};
PyType_Spec iteration_spec = {"bags._core.Iteration", sizeof(Iteration), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    iteration_slots};

/* _save(): (epoch, batch, state) */
static PyObject *loader_save(PyObject *self, PyObject *unused) {
    Loader *loader = (Loader *)self;
    unsigned char state[BAGS_LOADER_STATE];
    bags_error err;
    bags_code code;
    (void)unused;
    if (!loader_begin(loader))
        return NULL;
    WITHOUT_GIL(code = bags_loader_save(loader->loader, state, &err));
    PyObject *out = code ? NULL
                         : Py_BuildValue("KKy#", loader->epoch, loader->batch,
                               (const char *)state, (Py_ssize_t)sizeof state);
    return loader_end(loader, code, &err, out);
}

/* _restore(epoch, batch, state) */
static PyObject *loader_restore(PyObject *self, PyObject *args) {
    Loader *loader = (Loader *)self;
    unsigned long long epoch, batch;
    const char *state;
    Py_ssize_t size;
    bags_error err;
    bags_code code;
    if (!PyArg_ParseTuple(args, "KKy#", &epoch, &batch, &state, &size) ||
        !loader_begin(loader))
        return NULL;
    bags_loader *to = loader->loader;
    bool after = batch >= loader->count; /* the last batch, before StopIteration */
    WITHOUT_GIL(code = bags_loader_restore(to, state, (size_t)size, &err);
                if (!code && !loader->packed) code =
                    bags_loader_seek(to, epoch + after, after ? 0 : batch, &err));
    loader->turn++;
    if (!code) {
        loader->epoch = epoch;
        loader->batch = batch;
        loader->resumed = true;
    }
    return loader_end(loader, code, &err, Py_NewRef(Py_None));
}

/* rank(): (rank, ranks, the variable with each, or None), from the environment */
static PyObject *find_rank(PyObject *module, PyObject *unused) {
    bags_worker found;
    bags_error err;
    (void)module;
    (void)unused;
    if (bags_rank_find(&found, &err)) {
        PyErr_Format(PyExc_ValueError, "rank: %s", err.message);
        return NULL;
    }
    return Py_BuildValue("KKzz", (unsigned long long)found.number,
        (unsigned long long)found.count, found.variable, found.count_variable);
}

PyMethodDef loader_functions[] = {
    {"rank", find_rank, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};

static PyObject *loader_check_open(PyObject *self, PyObject *unused) {
    (void)unused;
    return loader_ready((Loader *)self) ? Py_NewRef(Py_None) : NULL;
}

/* Stop the threads. No user function is called after that. False, with an exception, if
 * a signal handler raised one while a function was running. */
static bool loader_shut(Loader *loader, bool signals) {
    const struct timespec moment = {0, 5000000};
    bool raised = false;
    if (!loader_lock(loader))
        return false;
    loader->closing = true;
    while (signals && !raised && loader->calls > 0) {
        WITHOUT_GIL(nanosleep(&moment, NULL));
        loader->pausing = true;
        raised = PyErr_CheckSignals() != 0;
        loader->pausing = false;
    }
    if (raised) {
        loader_unlock(loader);
        return false;
    }
    bags_loader *closing = loader->loader;
    bags_tokens *tokens = loader->tokens;
    loader->loader = NULL;
    loader->tokens = NULL;
    loader->turn++;
    Py_CLEAR(loader->on_device);
    bags_cuda *cuda = loader->cuda;
    loader->cuda = NULL;
    WITHOUT_GIL(bags_loader_close(closing); bags_tokens_close(tokens);
                bags_cuda_close(cuda));
    pool_close(loader->pool);
    loader->pool = NULL;
    loader_unlock(loader);
    return true;
}

static PyObject *loader_close(PyObject *self, PyObject *unused) {
    Loader *loader = (Loader *)self;
    (void)unused;
    if (calling == loader)
        return loader_ready(loader), NULL;
    if (loader->loader && loader->process == this_process() &&
        !loader_shut(loader, true))
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *loader_batches(PyObject *self, void *unused) {
    Loader *loader = (Loader *)self;
    (void)unused;
    return loader_ready(loader) ? PyLong_FromUnsignedLongLong(loader->count) : NULL;
}

static PyObject *loader_closed(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(!((Loader *)self)->loader);
}

static int loader_traverse(PyObject *self, visitproc visit, void *arg) {
    Loader *loader = (Loader *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(loader->fields);
    Py_VISIT(loader->sampler);
    Py_VISIT(loader->raised);
    return 0;
}

/* The threads must end before the callbacks are freed. In a child of a fork, or if the
 * garbage collector runs in one of its callbacks or calls, the loader is never
 * freed. */
static int loader_clear(PyObject *self) {
    Loader *loader = (Loader *)self;
    if (calling == loader ||
        (loader->owner == PyThread_get_thread_ident() && !loader->pausing))
        return 0;
    PyObject *type, *value, *trace; /* raised while it is dropped */
    PyErr_Fetch(&type, &value, &trace);
    if (loader->loader && loader->process == this_process() &&
        !loader_shut(loader, false))
        PyErr_Clear();
    PyErr_Restore(type, value, trace);
    if (!loader->loader) {
        Py_CLEAR(loader->fields);
        Py_CLEAR(loader->sampler);
    }
    return 0;
}

static void loader_dealloc(PyObject *self) {
    Loader *loader = (Loader *)self;
    PyObject_GC_UnTrack(self);
    loader_clear(self);
    if (loader->loader)
        return;
    pool_close(loader->pool);
    Py_XDECREF(loader->on_device);
    bags_cuda_close(loader->cuda);
    if (loader->lock)
        PyThread_free_lock(loader->lock);
    Py_XDECREF(loader->path);
    Py_XDECREF(loader->sources);
    Py_XDECREF(loader->raised);
    Py_XDECREF(loader->text);
    PyMem_Free(loader->callbacks);
    bags_buffer_free(&loader->indices);
    free_object(self);
}

static PyMethodDef loader_methods[] = {{"_check", loader_check_open, METH_NOARGS, NULL},
    {"_save", loader_save, METH_NOARGS, NULL},
    {"_restore", loader_restore, METH_VARARGS, NULL},
    {"close", loader_close, METH_NOARGS, "close()\n--\n\nStop the threads."},
    {"__reduce__", no_pickle, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyMemberDef loader_members[] = {
    {"epoch", T_ULONGLONG, offsetof(Loader, epoch), READONLY, "The epoch it is in."},
    {"batch", T_ULONGLONG, offsetof(Loader, batch), READONLY,
        "Batches of the epoch that were returned."},
    {"skipped", T_ULONGLONG, offsetof(Loader, skipped), READONLY,
        "Datapoints that were left out so far (skip_damaged)."},
    {"on_cpu", T_ULONGLONG, offsetof(Loader, on_cpu), READONLY,
        "With device: images that the CPU made so far."},
    {"_packed", T_BOOL, offsetof(Loader, packed), READONLY, NULL}, {0}};
static PyGetSetDef loader_gets[] = {{"_batches", loader_batches, NULL, NULL, NULL},
    {"closed", loader_closed, NULL, "True after close().", NULL}, {0}};
static PyType_Slot loader_slots[] = {{Py_tp_doc, "The base of bags.Loader."},
    {Py_tp_init, loader_init}, {Py_tp_dealloc, loader_dealloc},
    {Py_tp_traverse, loader_traverse}, {Py_tp_clear, loader_clear},
    {Py_tp_iter, loader_iter}, {Py_tp_iternext, loader_next},
    {Py_tp_methods, loader_methods}, {Py_tp_members, loader_members},
    {Py_tp_getset, loader_gets}, {0, NULL}};
PyType_Spec loader_spec = {"bags._core.Loader", sizeof(Loader), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, loader_slots};
