/* bag.c - BagReader and BagWriter: one file of blobs. */
#include "core.h"

/* ---- reader ---- */

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
        WITHOUT_GIL(source->bag = bag_reader_open(text, options, &err));
        if (!source->bag)
            raise_error(source->state, &err, path);
    }
    Py_DECREF(name);
    return source->bag ? 0 : -1;
}

static int bag_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"source", "cache_index", "no_mmap", "allow_empty_file",
        "unfinished", "verify_checksums", "storage", NULL};
    Opened *bag = (Opened *)self;
    PyObject *object, *from = Py_None, *kept = NULL;
    int cache = 1, no_mmap = 0, empty = 0, checks = 0, code = -1;
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
    bool file = !PyObject_CheckBuffer(object) && PyObject_HasAttrString(object, "read");
    if (file) { /* an open file: all of it */
        PyObject *start = PyObject_CallMethod(object, "seek", "i", 0);
        kept = start ? PyObject_CallMethod(object, "read", NULL) : NULL;
        Py_XDECREF(start);
    } else {
        kept = PyObject_CheckBuffer(object) ? Py_NewRef(object)
                                            : pickled_path(object, from);
    }
    bool memory = kept && (file || PyObject_CheckBuffer(object));
    PyObject *path = memory ? PyUnicode_FromString("memory")
                     : kept ? Py_NewRef(object)
                            : NULL;
    Source *source = path ? new_source(bag->state, path) : NULL;
    if (source)
        code = memory ? bag_memory(source, kept, &options)
                      : bag_file(source, object, from, &options);
    if (!code) {
        SET(bag->path, Py_NewRef(path));
        SET(bag->source, (Source *)Py_NewRef((PyObject *)source));
        SET(bag->args, Py_BuildValue("(Oi)", kept, cache));
        SET(bag->kwargs,
            Py_BuildValue("{sisisssisO}", "no_mmap", no_mmap, "allow_empty_file", empty,
                "unfinished", unfinished_names[options.unfinished], "verify_checksums",
                checks, "storage", from));
        code = bag->args && bag->kwargs ? 0 : -1;
    }
    Py_XDECREF((PyObject *)source);
    Py_XDECREF(path);
    Py_XDECREF(kept);
    return code;
}

static Py_ssize_t bag_len(PyObject *self) {
    Source *source = ((Opened *)self)->source;
    return source ? (Py_ssize_t)bag_reader_length(source->bag) : closed_error(self);
}

static PyObject *bag_get(Source *source, uint64_t index, bool view) {
    Row *row = take_row(source);
    PyObject *out = NULL;
    bags_view blob;
    bags_error err;
    bags_code code;
    if (!row)
        return NULL;
    WITHOUT_GIL(code = bag_reader_get(source->bag, index, &row->scratch, &blob, &err));
    if (code)
        raise_error(source->state, &err, source->path);
    else if (view)
        out = new_view(source->state, (PyObject *)source, blob,
            !bags_buffer_contains(&row->scratch, blob.data));
    else
        out = PyBytes_FromStringAndSize((const char *)blob.data, (Py_ssize_t)blob.size);
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
        WITHOUT_GIL(code = bag_reader_get_range(source->bag, (uint64_t)start,
                        (uint64_t)(start + count), &row->scratch, &range, &err));
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
    Source *source = source_of(self);
    uint64_t index;
    PyObject *out = NULL;
    if (!source)
        return NULL;
    if (!PyIndex_Check(key))
        out = bag_slice(source, key);
    else if (take_index(source, key, &index))
        out = bag_get(source, index, false);
    Py_DECREF(source);
    return out;
}

static PyObject *bag_item(PyObject *self, Py_ssize_t index) {
    Source *source = source_of(self);
    PyObject *out = source ? bag_get(source, (uint64_t)index, false) : NULL;
    Py_XDECREF((PyObject *)source);
    return out;
}

static PyObject *bag_view(PyObject *self, PyObject *key) {
    Source *source = source_of(self);
    uint64_t index;
    PyObject *out = NULL;
    if (source && take_index(source, key, &index))
        out = bag_get(source, index, true);
    Py_XDECREF((PyObject *)source);
    return out;
}

static PyObject *bag_size(PyObject *self, void *unused) {
    Source *source = ((Opened *)self)->source;
    (void)unused;
    if (!source)
        return closed_error(self), NULL;
    return PyLong_FromUnsignedLongLong(bag_reader_size(source->bag));
}

static PyObject *bag_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    Opened *bag = (Opened *)self;
    if (!bag->kwargs)
        return closed_error(self), NULL;
    return rebuild(self, (PyObject *)bag->state->bag_reader, bag->args, bag->kwargs);
}

static void bag_dealloc(PyObject *self) {
    Opened *bag = (Opened *)self;
    Py_XDECREF(bag->path);
    Py_XDECREF((PyObject *)bag->source);
    Py_XDECREF(bag->args);
    Py_XDECREF(bag->kwargs);
    free_object(self);
}

static PyMethodDef bag_methods[] = {
    {"view", bag_view, METH_O,
        "view(i)\n--\n\n"
        "Blob i as a read-only memoryview, without a copy if the file is\n"
        "mapped.\n\n"
        "It stays valid when the reader is closed. IndexError: out of range."},
    {"close", close_source, METH_NOARGS,
        "close()\n--\n\n"
        "Close it. Views stay valid; the file is released with the last."},
    {"copy", copy_object, METH_NOARGS, "copy()\n--\n\nAnother reader of the same Bag."},
    {"__reduce__", bag_reduce, METH_NOARGS, NULL},
    {"__enter__", enter, METH_NOARGS, NULL}, {"__exit__", leave, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef bag_gets[] = {
    {"size", bag_size, NULL, "Size of the Bag in bytes.", NULL},
    {"closed", is_source_closed, NULL, "True after close().", NULL}, {0}};
static PyType_Slot bag_slots[] = {
    {Py_tp_doc,
        "BagReader(source, cache_index=True, *, no_mmap=False, "
        "allow_empty_file=False,\n"
        "          unfinished='refuse', verify_checksums=False, storage=None)\n--\n\n"
        "A Bag: r[i] is blob i as bytes, r[2:5] a list of them, len(r) their\n"
        "number.\n\n"
        "source is a path, bytes, or an open binary file, which is read into\n"
        "memory.\n"
        "Errors: FileNotFoundError, DataError (not a Bag, or damaged), OSError."},
    {Py_tp_init, bag_init}, {Py_tp_dealloc, bag_dealloc}, {Py_tp_methods, bag_methods},
    {Py_tp_getset, bag_gets}, {Py_mp_subscript, bag_subscript}, {Py_mp_length, bag_len},
    {Py_sq_item, bag_item}, {Py_sq_length, bag_len}, {0, NULL}};
static PyType_Spec bag_spec = {"bags._core.BagReader", sizeof(Opened), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, bag_slots};

/* ---- writer ---- */

static int out_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"path", "keep_idx", "sync", "checksum", NULL};
    Written *out = (Written *)self;
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
    out->process = this_process();
    if (!out->lock)
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

typedef struct Record {
    Py_buffer bytes;
    uint64_t index;
} Record;

static bags_code append_record(Written *out, void *data, bags_error *err) {
    Record *record = (Record *)data;
    return bag_writer_append((bag_writer *)out->writer, record->bytes.buf,
        (size_t)record->bytes.len, &record->index, err);
}

static PyObject *out_append(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"record", "flush", NULL};
    Record record = {0};
    int flush;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "y*|p", words, &record.bytes, &flush))
        return NULL;
    bool good = call_writer(self, append_record, &record);
    PyBuffer_Release(&record.bytes);
    return good ? PyLong_FromUnsignedLongLong(record.index) : NULL;
}

static bags_code flush_bag(Written *out, void *unused, bags_error *err) {
    (void)unused;
    return bag_writer_flush((bag_writer *)out->writer, err);
}

static PyObject *out_flush(PyObject *self, PyObject *unused) {
    (void)unused;
    return call_writer(self, flush_bag, NULL) ? Py_NewRef(Py_None) : NULL;
}

static bags_code close_bag(Written *out, void *unused, bags_error *err) {
    bag_writer *writer = (bag_writer *)out->writer;
    (void)unused;
    out->length = bag_writer_length(writer);
    out->size = bag_writer_size(writer);
    out->writer = NULL;
    return bag_writer_close(writer, err);
}

static PyObject *out_close(PyObject *self, PyObject *unused) {
    (void)unused;
    return close_writer(self, close_bag);
}

static Py_ssize_t out_len(PyObject *self) {
    Written *out = (Written *)self;
    bag_writer *writer = (bag_writer *)out->writer;
    return (Py_ssize_t)(writer ? bag_writer_length(writer) : out->length);
}

static PyObject *out_size(PyObject *self, void *unused) {
    Written *out = (Written *)self;
    bag_writer *writer = (bag_writer *)out->writer;
    (void)unused;
    return PyLong_FromUnsignedLongLong(writer ? bag_writer_size(writer) : out->size);
}

static void out_dealloc(PyObject *self) {
    Written *out = (Written *)self;
    bag_writer_close((bag_writer *)out->writer, NULL);
    if (out->lock)
        PyThread_free_lock(out->lock);
    Py_XDECREF(out->path);
    free_object(self);
}

static PyMethodDef out_methods[] = {
    {"append", KEYWORDS(out_append), METH_VARARGS | METH_KEYWORDS,
        "append(record, flush=True)\n--\n\n"
        "Append bytes; returns their index. They are buffered: flush() passes\n"
        "them to the system, whatever `flush` is here."},
    {"flush", out_flush, METH_NOARGS,
        "flush()\n--\n\n"
        "Pass all blobs to the system: they survive the end of this process."},
    {"close", out_close, METH_NOARGS,
        "close()\n--\n\nWrite the table. Closing it again does nothing."},
    {"__reduce__", no_pickle, METH_NOARGS, NULL},
    {"__enter__", enter, METH_NOARGS, NULL}, {"__exit__", leave, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef out_gets[] = {
    {"size", out_size, NULL, "Size in bytes that the file has when it is closed.",
        NULL},
    {"closed", is_writer_closed, NULL, "True after close().", NULL}, {0}};
static PyType_Slot out_slots[] = {
    {Py_tp_doc, "BagWriter(path, *, keep_idx=False, sync=False, checksum=False)\n--\n\n"
                "Create a Bag, which must not exist (FileExistsError).\n\n"
                "sync: close waits for stable storage. A writer that is dropped is\n"
                "closed."},
    {Py_tp_init, out_init}, {Py_tp_dealloc, out_dealloc}, {Py_tp_methods, out_methods},
    {Py_tp_getset, out_gets}, {Py_sq_length, out_len}, {0, NULL}};
static PyType_Spec out_spec = {"bags._core.BagWriter", sizeof(Written), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, out_slots};

int add_bag(PyObject *module, State *state) {
    state->bag_reader = add_type(module, &bag_spec, true);
    return state->bag_reader && add_type(module, &out_spec, true) ? 0 : -1;
}
