/* loader.c - Loader: shuffled batches of arrays by the threads of the C loader. */
#include "core.h"

typedef struct Callback Callback;

typedef struct Loader {
    PyObject_HEAD State *state;
    PyObject *path;      /* of the first dataset */
    bags_loader *loader; /* NULL: closed */
    PyThread_type_lock lock;
    PyObject *sources; /* tuple: they stay open */
    PyObject *fields;  /* list of names and dicts, which nobody else has; or None */
    PyObject *options; /* dict of the tokens; or None */
    PyObject *sampler; /* a function, or NULL */
    bags_tokens *tokens;
    Callback *callbacks;
    unsigned process;
    unsigned char *text; /* per field: a str, not bytes */
    PyObject *raised; /* list: exceptions of callbacks; bags_error.system counts them */
    bool noted;       /* the one that failed the loader says where */
} Loader;

/* ---- fields ---- */

#define FIELD(kind, name) OPTION(kind, bags_load_field, name)
static const Option field_options[] = {FIELD('u', width), FIELD('u', height),
    FIELD('u', channels), CHOICE(bags_load_field, crop, "none center random"),
    FIELD('u', resize), CHOICE(bags_load_field, filter, "bilinear bicubic nearest"),
    FIELD('i', area), FIELD('i', aspect), FIELD('x', flip_x), FIELD('x', flip_y),
    FIELD('b', nchw), FIELD('b', scaled), FIELD('b', orient), FIELD('f', mean),
    FIELD('f', std), FIELD('U', window), FIELD('U', stride), FIELD('d', dtype),
    OTHER(shape), OTHER(warp), OTHER(jitter), OTHER(decode), OTHER(draw), {0}};

#define WARP(kind, name) OPTION(kind, bags_warp_options, name)
static const Option warp_options[] = {WARP('i', degrees), WARP('i', scale),
    WARP('i', shear_x), WARP('i', shear_y), WARP('i', translate_x),
    WARP('i', translate_y), WARP('x', perspective), WARP('c', fill), {0}};

#define JITTER(name) OPTION('i', bags_jitter_options, name)
static const Option jitter_options[] = {
    JITTER(brightness), JITTER(contrast), JITTER(saturation), JITTER(hue), {0}};

#define TOKENS(kind, name) OPTION(kind, bags_tokens_options, name)
static const Option tokens_options[] = {TOKENS('s', field), TOKENS('U', length),
    TOKENS('U', stride), TOKENS('b', pack), TOKENS('b', places), TOKENS('d', dtype),
    TOKENS('u', bos), TOKENS('u', eos),
    CHOICE(bags_tokens_options, long_documents, "split drop"), OTHER(parallel), {0}};

#define LOADER(kind, name) OPTION(kind, bags_loader_options, name)
#define ORDER(kind, name)                                                              \
    { #name, NULL, kind, offsetof(bags_loader_options, order.name) }
static const Option loader_options[] = {LOADER('u', batch), ORDER('U', seed),
    {"shuffle", NULL, 'n', offsetof(bags_loader_options, order.in_order)},
    ORDER('U', chunk), ORDER('U', window), LOADER('b', drop_last), LOADER('u', rank),
    LOADER('u', ranks), LOADER('u', threads), LOADER('u', ahead),
    LOADER('b', skip_damaged), LOADER('b', prefetch), LOADER('b', random_window),
    LOADER('U', window_start), ORDER('U', take), ORDER('b', replacement),
    OTHER(weights), OTHER(rows), OTHER(sampler), {0}};

static bags_code call_decode(void *user, const bags_load_item *item,
    bags_buffer *scratch, bags_value *value, bags_error *err);
static bags_code call_draw(void *user, const bags_load_item *item,
    const bags_image *image, bags_load_draw *draw, bags_error *err);

/* The callbacks of a field, and its loader. */
struct Callback {
    Loader *loader;
    PyObject *decode, *draw;
    bool by_matrix, is_float; /* draw: what it returns is used */
    bags_warp_options warp;
    bags_jitter_options jitter;
};

/* A field, while its options are set. */
typedef struct Setting {
    bags_load_field *field;
    uint64_t *shape;
    Callback *callback;
} Setting;

static int set_shape(Setting *set, PyObject *value) {
    Py_ssize_t dims = PySequence_Size(value);
    if (dims > 6)
        PyErr_SetString(PyExc_ValueError, "shape has more than 6 dimensions");
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < dims; i++) {
        PyObject *part = PySequence_GetItem(value, i);
        if (part)
            number_converter(part, &set->shape[i]);
        Py_XDECREF(part);
    }
    set->field->dims = dims < 0 ? 0 : (size_t)dims;
    set->field->shape = set->shape;
    return PyErr_Occurred() ? -1 : 1;
}

/* {option: value} of a table. */
static int set_inner(const Option *options, void *to, PyObject *value) {
    if (!PyDict_Check(value))
        PyErr_SetString(PyExc_TypeError, "a dict of options is required");
    else
        set_options(options, to, value, NULL, NULL, NULL, NULL);
    return PyErr_Occurred() ? -1 : 1;
}

static int set_callback(PyObject **out, PyObject *value) {
    *out = value;
    if (PyCallable_Check(value))
        return 1;
    PyErr_Format(PyExc_TypeError, "%R is not a function", value);
    return -1;
}

static int other_field_option(void *user, const char *name, PyObject *value) {
    Setting *set = (Setting *)user;
    if (strcmp(name, "shape") == 0)
        return set_shape(set, value);
    if (strcmp(name, "warp") == 0) {
        set->field->warp = &set->callback->warp;
        return set_inner(warp_options, &set->callback->warp, value);
    }
    if (strcmp(name, "jitter") == 0) {
        set->field->jitter = &set->callback->jitter;
        return set_inner(jitter_options, &set->callback->jitter, value);
    }
    if (strcmp(name, "decode") == 0) {
        set->field->decode = call_decode;
        return set_callback(&set->callback->decode, value);
    }
    if (strcmp(name, "draw") == 0) {
        set->field->draw = call_draw;
        return set_callback(&set->callback->draw, value);
    }
    return 0;
}

/* Of a list of (name, {option: value}), which lives as long as the loader. */
static bool set_fields(
    Loader *loader, bags_load_field *fields, uint64_t (*shapes)[6], Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        Setting set = {&fields[i], shapes[i], &loader->callbacks[i]};
        PyObject *of;
        set.callback->loader = loader;
        fields[i].user = set.callback;
        if (!PyArg_ParseTuple(PyList_GetItem(loader->fields, i), "sO!", &fields[i].name,
                &PyDict_Type, &of) ||
            !set_options(field_options, &fields[i], of, loader->path, fields[i].name,
                other_field_option, &set))
            return false;
        set.callback->by_matrix =
            fields[i].warp || fields[i].filter == BAGS_FILTER_NEAREST;
        set.callback->is_float = fields[i].dtype == BAGS_DTYPE_FLOAT32;
    }
    return true;
}

/* ---- callbacks, in threads of C ---- */

/* What a function returned, as a value in `scratch`. */
static int returned_value(
    State *state, PyObject *object, bags_buffer *scratch, bags_value *value) {
    Arena arena = {0};
    int code = arena_any(state, &arena, object);
    bags_value *from = arena.values;
    size_t shape = code ? 0 : from->dims * sizeof *from->shape;
    if (!code && bags_buffer_reserve(scratch, shape + from->size + 64, NULL)) {
        PyErr_NoMemory();
        code = -1;
    }
    if (!code) { /* the data first, since it is aligned there */
        *value = *from;
        size_t at = (from->size + 15) & ~(size_t)15;
        if (from->size)
            memcpy(scratch->data, from->data, from->size);
        if (shape)
            memcpy(scratch->data + at, from->shape, shape);
        value->data = scratch->data;
        value->shape = (const uint64_t *)(const void *)(scratch->data + at);
    }
    arena_reset(&arena);
    arena_free(&arena);
    return code;
}

/* The loader whose callback this thread runs: it cannot be used there, since the thread
 * would wait for itself. */
static __thread Loader *calling;

/* Keep the exception of a callback. It is no damage: no code that skip_damaged skips. */
static bags_code keep_raised(Loader *loader, const char *name, bags_error *err) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    bags_code code = bags_fail(err, BAGS_ERROR_STATE, "%s raised this", name);
    if (PyList_Append(loader->raised, value))
        PyErr_Clear();
    else
        err->system = (int)PyList_Size(loader->raised);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return code;
}

static bags_code call_decode(void *user, const bags_load_item *item,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    Callback *callback = (Callback *)user;
    Loader *loader = callback->loader;
    bags_code code = BAGS_OK;
    PyGILState_STATE gil = PyGILState_Ensure();
    calling = loader;
    PyObject *out = PyObject_CallFunction(callback->decode, "y#",
        (const char *)item->blob.data, (Py_ssize_t)item->blob.size);
    if (!out || returned_value(loader->state, out, scratch, value))
        code = keep_raised(loader, "decode", err);
    Py_XDECREF(out);
    calling = NULL;
    PyGILState_Release(gil);
    return code;
}

/* What draw receives: bags_load_item, bags_image and bags_load_draw in one. */
static PyStructSequence_Field drawn_fields[] = {
    {"dataset", "Number of the dataset in the Loader's list."},
    {"datapoint", "Index of the datapoint in it."},
    {"item", "Number in a sequence; otherwise 0."},
    {"random", "From 0 to 2^64-1, by seed, epoch and position in the epoch alone: the "
               "same for all fields of a datapoint."},
    {"width", "Of the entire image, in pixels."}, {"height", "Likewise."},
    {"channels", "1 to 4."},
    {"matrix",
        "3 x 3 numbers, from pixels of the result to pixels of the image: the crop, "
        "flips and warp that were drawn. None without the option warp."},
    {"brightness", "A factor; 1 changes nothing."}, {"contrast", "Likewise."},
    {"saturation", "Likewise."}, {"hue", "-0.5 to 0.5; 0 changes nothing."},
    {"order", "The order of these four: of 0, 1, 2, 3."}, {"mean", "3 numbers."},
    {"std", "3 numbers; 0 is 1."}, {NULL, NULL}};
static PyStructSequence_Desc drawn_desc = {"bags.Drawn",
    "What was drawn for an image, which the option `draw` of bags.Loader receives.",
    drawn_fields, 15};

#define DRAW(kind, name, member)                                                       \
    { #name, NULL, kind, offsetof(bags_load_draw, member) }
/* What it may return. */
static const Option draw_options[] = {OTHER(matrix),
    DRAW('x', brightness, jitter.brightness), DRAW('x', contrast, jitter.contrast),
    DRAW('x', saturation, jitter.saturation), DRAW('x', hue, jitter.hue), OTHER(order),
    DRAW('f', mean, mean), DRAW('f', std, std), {0}};

static PyObject *new_drawn(const Callback *callback, const bags_load_item *item,
    const bags_image *image, const bags_load_draw *draw) {
    static const uint64_t shape[2] = {3, 3};
    State *state = callback->loader->state;
    const unsigned char *order = draw->jitter.order;
    bags_value matrix = bags_array(BAGS_DTYPE_FLOAT64, 2, shape, draw->matrix);
    PyObject *out = PyStructSequence_New(state->drawn);
    PyObject *parts = Py_BuildValue("KKKKIIINdddd(iiii)(ddd)(ddd)",
        (unsigned long long)item->pick.dataset, (unsigned long long)item->pick.index,
        (unsigned long long)item->item, (unsigned long long)item->random, image->width,
        image->height, (unsigned)image->channels,
        callback->by_matrix ? new_array(state, NULL, &matrix, false, true)
                            : Py_NewRef(Py_None),
        draw->jitter.brightness, draw->jitter.contrast, draw->jitter.saturation,
        draw->jitter.hue, order[0], order[1], order[2], order[3], draw->mean[0],
        draw->mean[1], draw->mean[2], draw->std[0], draw->std[1], draw->std[2]);
    for (Py_ssize_t i = 0; out && parts && i < drawn_desc.n_in_sequence; i++)
        PyStructSequence_SetItem(out, i, Py_NewRef(PyTuple_GetItem(parts, i)));
    if (!parts)
        Py_CLEAR(out);
    Py_XDECREF(parts);
    return out;
}

/* Nine numbers, in whatever NumPy takes for an array. */
static bool set_matrix(State *state, double *matrix, PyObject *value) {
    PyObject *array = PyObject_CallFunction(state->asarray, "Os", value, "float64");
    PyObject *flat = array ? PyObject_CallMethod(array, "ravel", NULL) : NULL;
    bool good = flat && take_numbers(matrix, 9, "3 x 3 numbers", flat);
    Py_XDECREF(array);
    Py_XDECREF(flat);
    return good;
}

/* What a draw function returned, while it is taken. */
typedef struct Drawing {
    const Callback *callback;
    bags_load_draw *draw;
} Drawing;

static int other_draw_option(void *user, const char *name, PyObject *value) {
    const Drawing *to = (const Drawing *)user;
    bool scale = strcmp(name, "mean") == 0 || strcmp(name, "std") == 0;
    if (strcmp(name, "order") == 0)
        return take_bytes(to->draw->jitter.order, 4, 3, "4 numbers", value) ? 1 : -1;
    if (scale && !to->callback->is_float)
        PyErr_SetString(PyExc_ValueError, "needs the option dtype='float32'");
    else if (strcmp(name, "matrix") != 0)
        return 0;
    else if (!to->callback->by_matrix)
        PyErr_SetString(PyExc_ValueError, "needs the option warp, which may be {}");
    else if (set_matrix(to->callback->loader->state, to->draw->matrix, value))
        return 1;
    return -1;
}

static bags_code call_draw(void *user, const bags_load_item *item,
    const bags_image *image, bags_load_draw *draw, bags_error *err) {
    const Callback *callback = (const Callback *)user;
    Loader *loader = callback->loader;
    bags_code code = BAGS_OK;
    PyGILState_STATE gil = PyGILState_Ensure();
    calling = loader;
    PyObject *drawn =
        load_numpy(loader->state) ? new_drawn(callback, item, image, draw) : NULL;
    PyObject *out =
        drawn ? PyObject_CallFunctionObjArgs(callback->draw, drawn, NULL) : NULL;
    Drawing to = {callback, draw};
    if (out && out != Py_None && !PyDict_Check(out))
        PyErr_Format(PyExc_TypeError,
            "draw returned %R (expected a dict of what it changes, or None)",
            (PyObject *)Py_TYPE(out));
    else if (out)
        set_options(draw_options, draw, out, NULL, NULL, other_draw_option, &to);
    if (PyErr_Occurred())
        code = keep_raised(loader, "draw", err);
    Py_XDECREF(drawn);
    Py_XDECREF(out);
    calling = NULL;
    PyGILState_Release(gil);
    return code;
}

/* ---- opening ---- */

static const bags_loader_images images = {bags_resample,
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

/* The sources of the readers, and the C readers; NULL with an exception. */
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

/* Options of tokens, while they are set. */
typedef struct TokenSetting {
    bags_tokens_options options;
    const char *parallel[15];
} TokenSetting;

/* The names of parallel fields, which the list keeps; and which options are set. */
static int other_token_option(void *user, const char *name, PyObject *value) {
    TokenSetting *set = (TokenSetting *)user;
    set->options.has_bos |= strcmp(name, "bos") == 0;
    set->options.has_eos |= strcmp(name, "eos") == 0;
    if (strcmp(name, "parallel") != 0)
        return 0;
    Py_ssize_t size = PySequence_Size(value);
    if (size > 15)
        PyErr_SetString(PyExc_ValueError, "more than 15 fields");
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < size; i++) {
        PyObject *text = PySequence_GetItem(value, i);
        set->parallel[i] = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
        Py_XDECREF(text);
    }
    set->options.parallel_count = size > 0 ? (size_t)size : 0;
    return PyErr_Occurred() ? -1 : 1;
}

/* Tokens, by a dict of options, which lives as long as the loader. */
static bool loader_tokens(
    Loader *loader, const bags_reader *const *readers, size_t count) {
    TokenSetting set = {0};
    bags_tokens_options *options = &set.options;
    bags_error err;
    if (!set_options(tokens_options, options, loader->options, loader->path, NULL,
            other_token_option, &set))
        return false;
    options->parallel = options->parallel_count ? set.parallel : NULL;
    WITHOUT_GIL(loader->tokens = bags_tokens_open(readers, count, options, &err));
    if (!loader->tokens)
        raise_error(loader->state, &err, NULL);
    return loader->tokens != NULL;
}

static int loader_open(Loader *loader, PyObject *list, bags_loader_options *options) {
    bags_error err;
    Py_ssize_t count = loader->fields == Py_None ? 0 : PyList_Size(loader->fields);
    const bags_reader **readers = loader_readers(loader, list);
    bags_load_field *fields =
        (bags_load_field *)PyMem_Calloc((size_t)count + 1, sizeof *fields);
    uint64_t(*shapes)[6] =
        (uint64_t(*)[6])PyMem_Calloc((size_t)count + 1, sizeof *shapes);
    loader->callbacks =
        (Callback *)PyMem_Calloc((size_t)count + 1, sizeof *loader->callbacks);
    if (readers && !(fields && shapes && loader->callbacks))
        PyErr_NoMemory();
    if (!PyErr_Occurred() && loader->options != Py_None &&
        loader_tokens(loader, readers, (size_t)PyList_Size(list)))
        options->tokens = loader->tokens;
    if (!PyErr_Occurred() &&
        (count == 0 || set_fields(loader, fields, shapes, count))) {
        options->fields = count ? fields : NULL;
        options->field_count = (size_t)count;
        options->images = &images;
        loader->loader =
            bags_loader_open(readers, (size_t)PyList_Size(list), options, &err);
        if (!loader->loader)
            raise_error(loader->state, &err, NULL);
    }
    size_t all = 0;
    const bags_field *known = readers ? bags_reader_fields(readers[0], &all) : NULL;
    all = count ? (size_t)count : all;
    loader->text = (unsigned char *)PyMem_Calloc(all + 32, 1);
    for (size_t i = 0; loader->loader && loader->text && !loader->tokens && i < all;
         i++) {
        size_t number = i;
        if (count)
            bags_reader_field(readers[0], fields[i].name, &number, NULL);
        const char *type = known[number].type;
        loader->text[i] = !strncmp(type, "utf8", 4) || !strncmp(type, "zstd(utf8", 9);
    }
    PyMem_Free(readers);
    PyMem_Free(fields);
    PyMem_Free(shapes);
    return loader->loader ? 0 : -1;
}

/* The sampler, in threads of C: pairs of 64-bit numbers, of dataset and index. */
static bags_code call_sampler(void *user, uint64_t epoch, uint64_t start, size_t count,
    bags_pick *picks, bags_error *err) {
    Loader *loader = (Loader *)user;
    bags_code code = BAGS_OK;
    PyGILState_STATE gil = PyGILState_Ensure();
    calling = loader;
    PyObject *out = PyObject_CallFunction(loader->sampler, "KKn", epoch, start, count);
    Py_buffer view;
    if (!out || PyObject_GetBuffer(out, &view, PyBUF_SIMPLE)) {
        code = keep_raised(loader, "sampler", err);
    } else {
        if ((size_t)view.len == count * sizeof *picks)
            memcpy(picks, view.buf, count * sizeof *picks);
        else
            code = bags_fail(err, BAGS_ERROR_ARGUMENT, "the sampler returned %zu bytes",
                (size_t)view.len);
        PyBuffer_Release(&view);
    }
    Py_XDECREF(out);
    calling = NULL;
    PyGILState_Release(gil);
    return code;
}

/* Options of a loader of `count` datasets, while they are set. */
typedef struct LoaderSetting {
    Loader *loader;
    bags_loader_options options;
    bags_selection *selections;
    Py_ssize_t count;
} LoaderSetting;

/* As bags/loader.py prepares them, which keeps the bytes. */
static int other_loader_option(void *user, const char *name, PyObject *value) {
    LoaderSetting *set = (LoaderSetting *)user;
    bags_loader_options *options = &set->options;
    const char *data;
    Py_ssize_t size;
    int ranges;
    if (strcmp(name, "weights") == 0) {
        if (!PyArg_Parse(value, "y#", &data, &size))
            return -1;
        if (size == set->count * (Py_ssize_t)sizeof(double))
            options->order.weights = (const double *)(const void *)data;
        else
            PyErr_Format(PyExc_ValueError, "%zd for %zd datasets",
                size / (Py_ssize_t)sizeof(double), set->count);
    } else if (strcmp(name, "rows") == 0) {
        for (Py_ssize_t i = 0; i < set->count && !PyErr_Occurred(); i++) {
            PyObject *part = PyList_GetItem(value, i);
            bags_selection *to = &set->selections[i];
            if (!part || part == Py_None ||
                !PyArg_ParseTuple(part, "py#", &ranges, &data, &size))
                continue;
            to->kind = ranges ? BAGS_SELECTION_RANGES : BAGS_SELECTION_INDICES;
            to->numbers = (const uint64_t *)(const void *)data;
            to->count = (size_t)size / (ranges ? 16 : 8);
        }
        options->order.selections = set->selections;
    } else if (strcmp(name, "sampler") == 0) {
        unsigned long long length, hash;
        if (!PyArg_ParseTuple(value, "OKK", &set->loader->sampler, &length, &hash))
            return -1;
        Py_INCREF(set->loader->sampler);
        options->sampler = call_sampler;
        options->sampler_user = set->loader;
        options->sampler_length = length;
        options->sampler_hash = hash;
    } else {
        return 0;
    }
    return PyErr_Occurred() ? -1 : 1;
}

/* _core.Loader(readers, fields, tokens, options): a list of readers, what set_fields takes,
 * and dicts; None for two of them. */
static int loader_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"readers", "fields", "tokens", "options", NULL};
    Loader *loader = (Loader *)self;
    PyObject *list, *fields, *tokens, *named;
    LoaderSetting set = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOO!", words, &PyList_Type, &list,
            &fields, &tokens, &PyDict_Type, &named))
        return -1;
    if (loader->state || PyList_Size(list) == 0) {
        PyErr_SetString(loader->state ? PyExc_TypeError : PyExc_ValueError,
            loader->state ? "__init__ was called before" : "no dataset");
        return -1;
    }
    loader->state = state_of(Py_TYPE(self));
    loader->path = PyObject_GetAttrString(PyList_GetItem(list, 0), "path");
    loader->process = this_process();
    loader->fields = Py_NewRef(fields);
    loader->options = Py_NewRef(tokens);
    loader->raised = PyList_New(0);
    loader->lock = PyThread_allocate_lock();
    if (!loader->path || !loader->raised)
        return -1;
    if (!loader->lock)
        return PyErr_NoMemory(), -1;
    set.loader = loader;
    set.count = PyList_Size(list);
    set.selections =
        (bags_selection *)PyMem_Calloc((size_t)set.count, sizeof *set.selections);
    if (!set.selections)
        PyErr_NoMemory();
    else
        set_options(loader_options, &set.options, named, loader->path, NULL,
            other_loader_option, &set);
    if (!PyErr_Occurred() && set.options.batch == 0)
        PyErr_Format(PyExc_ValueError, "%S: batch: 0 (minimum 1)", loader->path);
    int code = PyErr_Occurred() ? -1 : loader_open(loader, list, &set.options);
    PyMem_Free(set.selections);
    return code;
}

/* ---- batches ---- */

static PyObject *tensor_values(State *state, const bags_tensor *tensor, bool text) {
    PyObject *out = PyList_New((Py_ssize_t)tensor->items);
    const unsigned char *data = (const unsigned char *)tensor->data;
    for (uint64_t i = 0; out && i < tensor->items; i++) {
        PyObject *item;
        if (tensor->values && tensor->values[i].kind == BAGS_KIND_ARRAY) {
            item = new_array(state, NULL, &tensor->values[i], false, true);
        } else if (tensor->values) {
            item = PyBytes_FromStringAndSize((const char *)tensor->values[i].data,
                (Py_ssize_t)tensor->values[i].size);
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

/* The items of ragged sequences, by datapoint: of a list or an array. */
static PyObject *tensor_ragged(PyObject *all, const uint64_t *offsets, size_t length) {
    PyObject *out = PyList_New((Py_ssize_t)length);
    for (size_t i = 0; out && i < length; i++) {
        PyObject *part = PySequence_GetSlice(
            all, (Py_ssize_t)offsets[i], (Py_ssize_t)offsets[i + 1]);
        if (!part || PyList_SetItem(out, (Py_ssize_t)i, part))
            Py_CLEAR(out);
    }
    return out;
}

/* A copy: the memory of the batch is used again. */
static PyObject *tensor_object(
    State *state, const bags_batch *batch, const bags_tensor *tensor, bool text) {
    PyObject *all;
    if (tensor->values || tensor->ends) {
        all = tensor_values(state, tensor, text);
    } else {
        bags_value value =
            bags_array(tensor->dtype, tensor->dims, tensor->shape, tensor->data);
        all = new_array(state, NULL, &value, false, true);
    }
    if (!all || !tensor->offsets)
        return all;
    PyObject *out = tensor_ragged(all, tensor->offsets, batch->length);
    Py_DECREF(all);
    return out;
}

static PyObject *batch_dict(Loader *loader, const bags_batch *batch) {
    PyObject *out = PyDict_New();
    for (size_t i = 0; out && i < batch->count; i++) {
        PyObject *value =
            tensor_object(loader->state, batch, &batch->tensors[i], loader->text[i]);
        if (!value || PyDict_SetItemString(out, batch->tensors[i].name, value))
            Py_CLEAR(out);
        Py_XDECREF(value);
    }
    return out;
}

/* Raises if it cannot be used: closed, or the child of a fork, where its threads are
 * missing. */
static bool loader_ready(Loader *loader) {
    if (calling == loader)
        PyErr_Format(PyExc_RuntimeError, "%S: a function of a Loader cannot use it",
            loader->path);
    else if (!loader->loader)
        closed_error((PyObject *)loader);
    else if (loader->process != this_process())
        PyErr_Format(PyExc_RuntimeError,
            "%S: a Loader cannot be used in a child made by fork(), since its threads "
            "are "
            "in the parent; open it in the child",
            loader->path);
    return !PyErr_Occurred();
}

/* Begin a call, alone; false with an exception. Waits without the GIL. */
static bool loader_begin(Loader *loader) {
    if (!loader_ready(loader))
        return false;
    WITHOUT_GIL(PyThread_acquire_lock(loader->lock, WAIT_LOCK));
    if (loader_ready(loader)) /* still */
        return true;
    PyThread_release_lock(loader->lock);
    return false;
}

static PyObject *loader_fail(Loader *loader, const bags_error *err) {
    PyObject *raised = err->code == BAGS_ERROR_STATE && err->system > 0
                           ? PyList_GetItem(loader->raised, err->system - 1)
                           : NULL;
    if (!raised)
        return raise_error(loader->state, err, NULL);
    /* Every later call raises it again. */
    PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
    if (!loader->noted)
        note_error("%s", err->message);
    loader->noted = true;
    return NULL;
}

/* End it: NULL with an exception if it failed; otherwise `out`. */
static PyObject *loader_end(
    Loader *loader, bags_code code, const bags_error *err, PyObject *out) {
    PyThread_release_lock(loader->lock);
    if (!code)
        return out;
    Py_XDECREF(out);
    return loader_fail(loader, err);
}

/* (epoch, number in it, datapoints that were left out, dict) */
static PyObject *loader_next(PyObject *self, PyObject *unused) {
    Loader *loader = (Loader *)self;
    const bags_batch *batch = NULL;
    bags_error err;
    bags_code code;
    (void)unused;
    if (!loader_begin(loader))
        return NULL;
    WITHOUT_GIL(code = bags_loader_next(loader->loader, &batch, &err));
    PyObject *out = code ? NULL
                         : Py_BuildValue("KKKN", batch->epoch, batch->batch,
                               batch->skipped, batch_dict(loader, batch));
    return loader_end(loader, code, &err, out);
}

static PyObject *loader_seek(PyObject *self, PyObject *args) {
    Loader *loader = (Loader *)self;
    unsigned long long epoch, batch;
    bags_error err;
    bags_code code;
    if (!PyArg_ParseTuple(args, "KK", &epoch, &batch) || !loader_begin(loader))
        return NULL;
    WITHOUT_GIL(code = bags_loader_seek(loader->loader, epoch, batch, &err));
    return loader_end(loader, code, &err, Py_NewRef(Py_None));
}

static PyObject *loader_save(PyObject *self, PyObject *unused) {
    Loader *loader = (Loader *)self;
    unsigned char state[BAGS_LOADER_STATE];
    bags_error err;
    bags_code code;
    (void)unused;
    if (!loader_begin(loader))
        return NULL;
    WITHOUT_GIL(code = bags_loader_save(loader->loader, state, &err));
    return loader_end(loader, code, &err,
        code ? NULL : PyBytes_FromStringAndSize((const char *)state, sizeof state));
}

static PyObject *loader_restore(PyObject *self, PyObject *object) {
    Loader *loader = (Loader *)self;
    char *state;
    Py_ssize_t size;
    bags_error err;
    bags_code code;
    if (PyBytes_AsStringAndSize(object, &state, &size) || !loader_begin(loader))
        return NULL;
    WITHOUT_GIL(code = bags_loader_restore(loader->loader, state, (size_t)size, &err));
    return loader_end(loader, code, &err, Py_NewRef(Py_None));
}

static PyObject *loader_check(PyObject *self, PyObject *unused) {
    (void)unused;
    return loader_ready((Loader *)self) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *loader_close(PyObject *self, PyObject *unused) {
    Loader *loader = (Loader *)self;
    (void)unused;
    if (calling == loader)
        return loader_ready(loader), NULL;
    if (loader->loader && loader->process == this_process()) {
        WITHOUT_GIL(PyThread_acquire_lock(loader->lock, WAIT_LOCK));
        bags_loader *closing = loader->loader;
        bags_tokens *tokens = loader->tokens;
        loader->loader = NULL;
        loader->tokens = NULL;
        WITHOUT_GIL(bags_loader_close(closing); bags_tokens_close(tokens));
        PyThread_release_lock(loader->lock);
    }
    Py_RETURN_NONE;
}

static PyObject *loader_batches(PyObject *self, void *unused) {
    Loader *loader = (Loader *)self;
    (void)unused;
    if (!loader_ready(loader))
        return NULL;
    return PyLong_FromUnsignedLongLong(bags_loader_batches(loader->loader));
}

static PyObject *loader_closed(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(!((Loader *)self)->loader);
}

static int loader_traverse(PyObject *self, visitproc visit, void *arg) {
    Loader *loader = (Loader *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(loader->fields);
    Py_VISIT(loader->options);
    Py_VISIT(loader->sampler);
    Py_VISIT(loader->raised);
    return 0;
}

/* Its threads end before its callbacks go. In a child of a fork, or if the garbage
 * collector runs in one of its callbacks, it stays. */
static int loader_clear(PyObject *self) {
    Loader *loader = (Loader *)self;
    if (calling == loader)
        return 0;
    Py_XDECREF(loader_close(self, NULL));
    if (!loader->loader) {
        Py_CLEAR(loader->fields);
        Py_CLEAR(loader->options);
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
    if (loader->lock)
        PyThread_free_lock(loader->lock);
    Py_XDECREF(loader->path);
    Py_XDECREF(loader->sources);
    Py_XDECREF(loader->raised);
    PyMem_Free(loader->callbacks);
    PyMem_Free(loader->text);
    free_object(self);
}

static PyMethodDef loader_methods[] = {{"_check", loader_check, METH_NOARGS, NULL},
    {"_next", loader_next, METH_NOARGS, NULL},
    {"_seek", loader_seek, METH_VARARGS, NULL},
    {"_save", loader_save, METH_NOARGS, NULL},
    {"_restore", loader_restore, METH_O, NULL},
    {"close", loader_close, METH_NOARGS, "close()\n--\n\nStop the threads."},
    {"__reduce__", no_pickle, METH_NOARGS, NULL},
    {"__enter__", enter, METH_NOARGS, NULL}, {"__exit__", leave, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef loader_gets[] = {{"_batches", loader_batches, NULL, NULL, NULL},
    {"closed", loader_closed, NULL, "True after close().", NULL}, {0}};
static PyType_Slot loader_slots[] = {{Py_tp_doc, "The base of bags.Loader."},
    {Py_tp_init, loader_init}, {Py_tp_dealloc, loader_dealloc},
    {Py_tp_traverse, loader_traverse}, {Py_tp_clear, loader_clear},
    {Py_tp_methods, loader_methods}, {Py_tp_getset, loader_gets}, {0, NULL}};
static PyType_Spec loader_spec = {"bags._core.Loader", sizeof(Loader), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, loader_slots};

int add_loader(PyObject *module, State *state) {
    state->drawn = PyStructSequence_NewType(&drawn_desc);
    return state->drawn && !PyModule_AddType(module, state->drawn) &&
                   add_type(module, &loader_spec, NULL, true)
               ? 0
               : -1;
}
