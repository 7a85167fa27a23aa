/* bag.c - BagReader and BagWriter: one file of blobs. */
#include "core.h"

/* ---- reader ---- */

typedef struct Bag {
    PyObject_HEAD State *state;
    Source *source; /* NULL: closed */
    PyObject *args; /* for pickle: of __init__ */
    PyObject *kwargs;
} Bag;

/* A Bag in memory: the object must have a buffer. */
static int bag_memory(
    Source *source, PyObject *object, const bag_reader_options *options) {
    bags_error err;
    if (PyObject_GetBuffer(object, &source->memory, PyBUF_SIMPLE))
        return -1;
    source->bag = bag_reader_open_memory(
        source->memory.buf, (size_t)source->memory.len, options, &err);
    if (!source->bag)
        raise_error(source->state, &err, NULL);
    return source->bag ? 0 : -1;
}

static int bag_file(
    Source *source, PyObject *path, PyObject *from, bag_reader_options *options) {
    PyObject *name;
    bags_error err;
    if (!PyUnicode_FSConverter(path, &name))
        return -1;
    const char *text = PyBytes_AsString(name);
    source->storage = open_storage(source->state, text, from, &options->env.io);
    if (source->storage) {
        Py_BEGIN_ALLOW_THREADS source->bag = bag_reader_open(text, options, &err);
        Py_END_ALLOW_THREADS if (!source->bag) raise_error(source->state, &err, path);
    }
    Py_DECREF(name);
    return source->bag ? 0 : -1;
}

static int bag_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"source", "cache_index", "no_mmap", "allow_empty_file",
        "unfinished", "verify_checksums", "storage", NULL};
    Bag *bag = (Bag *)self;
    PyObject *object, *from = Py_None;
    int cache = 1, no_mmap = 0, empty = 0, checks = 0, code;
    bag_reader_options options;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|p$ppO&pO", words, &object, &cache,
            &no_mmap, &empty, unfinished_converter, &options.unfinished, &checks,
            &from))
        return -1;
    options.no_mmap = no_mmap;
    options.cache_index = no_mmap && cache;
    options.allow_empty_file = empty;
    options.verify_checksums = checks;
    bag->state = state_of(Py_TYPE(self));
    Source *source = new_source(bag->state, object);
    if (!source)
        return -1;
    if (PyObject_CheckBuffer(object)) {
        code = bag_memory(source, object, &options);
    } else if (PyObject_HasAttrString(object, "read")) { /* an open file: all of it */
        PyObject *start = PyObject_CallMethod(object, "seek", "i", 0);
        PyObject *bytes = start ? PyObject_CallMethod(object, "read", NULL) : NULL;
        code = bytes ? bag_memory(source, bytes, &options) : -1;
        Py_XDECREF(start);
        Py_XDECREF(bytes);
    } else {
        code = bag_file(source, object, from, &options);
    }
    if (code) {
        Py_DECREF(source);
        return -1;
    }
    SET(bag->source, source);
    SET(bag->args, Py_NewRef(args));
    SET(bag->kwargs, Py_XNewRef(kwargs));
    return 0;
}

/* The source, which the caller releases; NULL with an exception if it is closed. */
static Source *bag_source(PyObject *self) {
    Source *source = ((Bag *)self)->source;
    if (!source)
        closed_error();
    return (Source *)Py_XNewRef((PyObject *)source);
}

static Py_ssize_t bag_len(PyObject *self) {
    Source *source = ((Bag *)self)->source;
    return source ? (Py_ssize_t)bag_reader_length(source->bag) : closed_error();
}

/* An index, counted from the end if it is negative. */
static bool bag_index(Source *source, PyObject *object, uint64_t *index) {
    Py_ssize_t length = (Py_ssize_t)bag_reader_length(source->bag);
    Py_ssize_t i = PyNumber_AsSsize_t(object, PyExc_IndexError);
    if (i == -1 && PyErr_Occurred())
        return false;
    *index = (uint64_t)(i < 0 && i >= -length ? i + length : i);
    if (i < -length)
        PyErr_Format(PyExc_IndexError, "%S: blob index %zd out of range (length %zd)",
            source->path, i, length);
    return i >= -length;
}

static PyObject *bag_get(Source *source, uint64_t index, bool view) {
    Row *row = take_row(source);
    PyObject *out = NULL;
    bags_view blob;
    bags_error err;
    bags_code code;
    if (!row)
        return NULL;
    Py_BEGIN_ALLOW_THREADS code =
        bag_reader_get(source->bag, index, &row->scratch, &blob, &err);
    Py_END_ALLOW_THREADS if (code) raise_error(source->state, &err, source->path);
    else if (view) out = new_view(source->state, (PyObject *)source, blob,
        !bags_buffer_contains(&row->scratch, blob.data));
    else out =
        PyBytes_FromStringAndSize((const char *)blob.data, (Py_ssize_t)blob.size);
    give_row(source, row);
    return out;
}

/* Blobs start, start + step, ...: neighbours with one read. */
static PyObject *bag_get_range(
    Source *source, Py_ssize_t start, Py_ssize_t step, Py_ssize_t count) {
    PyObject *list = PyList_New(count);
    Row *row = list ? take_row(source) : NULL;
    bags_range range;
    bags_error err;
    bags_code code = BAGS_OK;
    if (row && step == 1) {
        Py_BEGIN_ALLOW_THREADS code = bag_reader_get_range(source->bag, (uint64_t)start,
            (uint64_t)(start + count), &row->scratch, &range, &err);
        Py_END_ALLOW_THREADS
    }
    if (code)
        raise_error(source->state, &err, source->path);
    for (Py_ssize_t i = 0; row && !code && i < count; i++) {
        PyObject *blob;
        if (step == 1) {
            bags_view bytes = bags_range_get(&range, (size_t)i);
            blob = PyBytes_FromStringAndSize(
                (const char *)bytes.data, (Py_ssize_t)bytes.size);
        } else {
            blob = bag_get(source, (uint64_t)(start + i * step), false);
        }
        if (!blob || PyList_SetItem(list, i, blob))
            break;
    }
    if (row)
        give_row(source, row);
    if (PyErr_Occurred())
        Py_CLEAR(list);
    return list;
}

/* Clamped like the slice of a list. */
static PyObject *bag_slice(Source *source, PyObject *key) {
    Py_ssize_t start, stop, step, length = (Py_ssize_t)bag_reader_length(source->bag);
    PyObject *parts[3] = {PyObject_GetAttrString(key, "start"), NULL, NULL},
             *slice = NULL;
    if (parts[0] && (parts[1] = PyObject_GetAttrString(key, "stop")) &&
        (parts[2] = PyObject_GetAttrString(key, "step")))
        slice = PySlice_New(parts[0], parts[1], parts[2]);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(parts[i]);
    if (!slice) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError,
            "the index of a blob must be an int, a slice or a "
            "range, not %R",
            (PyObject *)Py_TYPE(key));
        return NULL;
    }
    int code = PySlice_Unpack(slice, &start, &stop, &step);
    Py_DECREF(slice);
    if (code)
        return NULL;
    Py_ssize_t count = PySlice_AdjustIndices(length, &start, &stop, step);
    return bag_get_range(source, start, step, count);
}

static PyObject *bag_subscript(PyObject *self, PyObject *key) {
    Source *source = bag_source(self);
    uint64_t index;
    PyObject *out = NULL;
    if (!source)
        return NULL;
    if (!PyIndex_Check(key))
        out = bag_slice(source, key);
    else if (bag_index(source, key, &index))
        out = bag_get(source, index, false);
    Py_DECREF(source);
    return out;
}

static PyObject *bag_item(PyObject *self, Py_ssize_t index) {
    Source *source = bag_source(self);
    PyObject *out = source ? bag_get(source, (uint64_t)index, false) : NULL;
    Py_XDECREF((PyObject *)source);
    return out;
}

static PyObject *bag_view(PyObject *self, PyObject *key) {
    Source *source = bag_source(self);
    uint64_t index;
    PyObject *out = NULL;
    if (source && bag_index(source, key, &index))
        out = bag_get(source, index, true);
    Py_XDECREF((PyObject *)source);
    return out;
}

static PyObject *bag_close(PyObject *self, PyObject *unused) {
    (void)unused;
    Py_CLEAR(((Bag *)self)->source);
    Py_RETURN_NONE;
}

static PyObject *bag_size(PyObject *self, void *unused) {
    Source *source = ((Bag *)self)->source;
    (void)unused;
    if (!source)
        return closed_error(), NULL;
    return PyLong_FromUnsignedLongLong(bag_reader_size(source->bag));
}

static PyObject *bag_closed(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(!((Bag *)self)->source);
}

static PyObject *bag_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    Bag *bag = (Bag *)self;
    PyObject *args = bag->args ? bag->args : NULL;
    if (!args)
        return closed_error(), NULL;
    return rebuild(self, (PyObject *)bag->state->bag_reader, args, bag->kwargs);
}

static void bag_dealloc(PyObject *self) {
    Bag *bag = (Bag *)self;
    Py_XDECREF((PyObject *)bag->source);
    Py_XDECREF(bag->args);
    Py_XDECREF(bag->kwargs);
    free_object(self);
}

static PyMethodDef bag_methods[] = {{"view", bag_view, METH_O,
                                        "view(i)\n--\n\nBlob i as a read-only "
                                        "memoryview, without a copy if the file is "
                                        "mapped.\n\nIt stays valid when the reader is "
                                        "closed. IndexError: out of range."},
    {"close", bag_close, METH_NOARGS,
        "close()\n--\n\nClose it. Views stay valid; the file is released with the "
        "last."},
    {"copy", copy_object, METH_NOARGS, "copy()\n--\n\nAnother reader of the same Bag."},
    {"__reduce__", bag_reduce, METH_NOARGS, NULL},
    {"__enter__", enter, METH_NOARGS, NULL}, {"__exit__", leave, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef bag_gets[] = {
    {"size", bag_size, NULL, "Size of the Bag in bytes.", NULL},
    {"closed", bag_closed, NULL, "True after close().", NULL}, {0}};
static PyType_Slot bag_slots[] = {
    {Py_tp_doc,
        "BagReader(source, cache_index=True, *, no_mmap=False, "
        "allow_empty_file=False,\n"
        "          unfinished='refuse', verify_checksums=False, storage=None)\n--\n\n"
        "A Bag: r[i] is blob i as bytes, r[2:5] a list of them, len(r) their "
        "number.\n\n"
        "source is a path, bytes, or an open binary file, which is read into memory.\n"
        "Errors: FileNotFoundError, DataError (not a Bag, or damaged), OSError."},
    {Py_tp_init, bag_init}, {Py_tp_dealloc, bag_dealloc}, {Py_tp_methods, bag_methods},
    {Py_tp_getset, bag_gets}, {Py_mp_subscript, bag_subscript}, {Py_mp_length, bag_len},
    {Py_sq_item, bag_item}, {Py_sq_length, bag_len}, {0, NULL}};
static PyType_Spec bag_spec = {"bags._core.BagReader", sizeof(Bag), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, bag_slots};

/* ---- writer ---- */

typedef struct BagOut {
    PyObject_HEAD State *state;
    bag_writer *writer;      /* NULL: closed */
    PyThread_type_lock lock; /* one thread at a time */
    PyObject *path;
    pid_t process;
    uint64_t length, size; /* after it was closed */
} BagOut;

static int out_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"path", "keep_idx", "sync", "checksum", NULL};
    BagOut *out = (BagOut *)self;
    PyObject *path, *name;
    int keep_idx = 0, sync = 0, checksum = 0;
    bag_writer_options options;
    bags_error err;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O|$ppp", words, &path, &keep_idx, &sync, &checksum))
        return -1;
    if (out->path) {
        PyErr_SetString(PyExc_TypeError, "__init__ was called before");
        return -1;
    }
    if (!PyUnicode_FSConverter(path, &name))
        return -1;
    options.keep_idx = keep_idx;
    options.no_sync = !sync;
    options.checksum = checksum;
    out->state = state_of(Py_TYPE(self));
    out->process = getpid();
    out->lock = PyThread_allocate_lock();
    out->writer =
        out->lock ? bag_writer_open(PyBytes_AsString(name), &options, &err) : NULL;
    Py_DECREF(name);
    if (!out->lock)
        PyErr_NoMemory();
    else if (!out->writer)
        raise_error(out->state, &err, path);
    else
        out->path = Py_NewRef(path);
    return out->path ? 0 : -1;
}

/* Call a function of C for the writer, alone and without the GIL. */
static PyObject *out_call(BagOut *out, bags_code (*call)(bag_writer *, bags_error *)) {
    bags_code code = BAGS_OK;
    bags_error err;
    bool open = false, closes = call == bag_writer_close;
    if (!out->lock) /* __init__ failed */
        return closes ? Py_NewRef(Py_None) : (closed_error(), NULL);
    Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock(out->lock, WAIT_LOCK);
    if (out->writer) {
        open = true;
        out->length = bag_writer_length(out->writer);
        out->size = bag_writer_size(out->writer);
        code = call(out->writer, &err);
        if (closes)
            out->writer = NULL;
    }
    PyThread_release_lock(out->lock);
    Py_END_ALLOW_THREADS if (!open && !closes) return closed_error(), NULL;
    if (code)
        return raise_error(out->state, &err, out->path);
    Py_RETURN_NONE;
}

static PyObject *out_append(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"record", "flush", NULL};
    BagOut *out = (BagOut *)self;
    Py_buffer bytes;
    int flush, open;
    uint64_t index = 0;
    bags_code code = BAGS_OK;
    bags_error err;
    if (out->writer && is_forked(out->process, out->path))
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*|p", words, &bytes, &flush))
        return NULL;
    if (out->lock) {
        Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock(out->lock, WAIT_LOCK);
        if ((open = out->writer != NULL))
            code = bag_writer_append(
                out->writer, bytes.buf, (size_t)bytes.len, &index, &err);
        PyThread_release_lock(out->lock);
        Py_END_ALLOW_THREADS
    } else {
        open = false;
    }
    PyBuffer_Release(&bytes);
    if (!open)
        return closed_error(), NULL;
    if (code)
        return raise_error(out->state, &err, out->path);
    return PyLong_FromUnsignedLongLong(index);
}

static PyObject *out_flush(PyObject *self, PyObject *unused) {
    (void)unused;
    return out_call((BagOut *)self, bag_writer_flush);
}

static PyObject *out_close(PyObject *self, PyObject *unused) {
    (void)unused;
    return out_call((BagOut *)self, bag_writer_close);
}

static Py_ssize_t out_len(PyObject *self) {
    BagOut *out = (BagOut *)self;
    return (Py_ssize_t)(out->writer ? bag_writer_length(out->writer) : out->length);
}

static PyObject *out_size(PyObject *self, void *unused) {
    BagOut *out = (BagOut *)self;
    (void)unused;
    return PyLong_FromUnsignedLongLong(
        out->writer ? bag_writer_size(out->writer) : out->size);
}

static PyObject *out_closed(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(!((BagOut *)self)->writer);
}

static void out_dealloc(PyObject *self) {
    BagOut *out = (BagOut *)self;
    bag_writer_close(out->writer, NULL);
    if (out->lock)
        PyThread_free_lock(out->lock);
    Py_XDECREF(out->path);
    free_object(self);
}

static PyMethodDef out_methods[] = {
    {"append", (PyCFunction)(void (*)(void))out_append, METH_VARARGS | METH_KEYWORDS,
        "append(record, flush=True)\n--\n\nAppend bytes; returns their index. They are "
        "buffered:\nflush() passes them to the system, whatever `flush` is here."},
    {"flush", out_flush, METH_NOARGS,
        "flush()\n--\n\nPass all blobs to the system: they survive the end of this "
        "process."},
    {"close", out_close, METH_NOARGS,
        "close()\n--\n\nWrite the table. Closing it again does nothing."},
    {"__reduce__", no_pickle, METH_NOARGS, NULL},
    {"__enter__", enter, METH_NOARGS, NULL}, {"__exit__", leave, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef out_gets[] = {
    {"size", out_size, NULL, "Size in bytes that the file has when it is closed.",
        NULL},
    {"closed", out_closed, NULL, "True after close().", NULL}, {0}};
static PyType_Slot out_slots[] = {
    {Py_tp_doc,
        "BagWriter(path, *, keep_idx=False, sync=False, checksum=False)\n--\n\n"
        "Create a Bag, which must not exist (FileExistsError).\n\n"
        "sync: close waits for stable storage. A writer that is dropped is closed."},
    {Py_tp_init, out_init}, {Py_tp_dealloc, out_dealloc}, {Py_tp_methods, out_methods},
    {Py_tp_getset, out_gets}, {Py_sq_length, out_len}, {0, NULL}};
static PyType_Spec out_spec = {"bags._core.BagWriter", sizeof(BagOut), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, out_slots};

int add_bag(PyObject *module, State *state) {
    state->bag_reader = add_type(module, &bag_spec, true);
    return state->bag_reader && add_type(module, &out_spec, true) ? 0 : -1;
}
