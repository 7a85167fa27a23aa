/* bag.c - BagReader and BagWriter: one file of blobs. */
#include "core.h"

#include <time.h>

/* ---- reader ---- */

/* Open a Bag in memory, from an object with a buffer. */
static Source *open_memory(
    State *state, PyObject *object, PyObject *path, const bag_reader_options *options) {
    Source *source = new_source(state, path);
    bags_error err;
    if (source && !PyObject_GetBuffer(object, &source->memory, PyBUF_SIMPLE)) {
        source->bag = bag_reader_open_memory(
            source->memory.buf, (size_t)source->memory.len, options, &err);
        if (!source->bag)
            raise_error(state, &err, NULL);
    }
    if (source && !source->bag)
        Py_CLEAR(source);
    return source;
}

static bool open_bag(
    Source *source, const char *path, const void *options, bags_error *err) {
    source->bag = bag_reader_open(path, (const bag_reader_options *)options, err);
    return source->bag != NULL;
}

/* _core.BagReader(source, storage, options): source is a path, or an object with a
 * buffer. */
static int bag_init(PyObject *self, PyObject *args, PyObject *unused) {
    Opened *bag = (Opened *)self;
    PyObject *object, *storage, *named;
    bag_reader_options options;
    (void)unused;
    if (!PyArg_ParseTuple(args, "OOO", &object, &storage, &named) ||
        !begin_init(self) || !take_struct(&options, sizeof options, named))
        return -1;
    bool memory = PyObject_CheckBuffer(object) && !PyUnicode_Check(object);
    OWNED PyObject *path = memory ? PyUnicode_FromString("memory") : Py_NewRef(object);
    State *state = bag->base.state;
    options.cache_index &= options.no_mmap;
    if (path)
        bag->source = memory ? open_memory(state, object, path, &options)
                             : open_source(state, path, storage, &options.env.io,
                                   open_bag, &options);
    if (bag->source)
        bag->base.path = Py_NewRef(path);
    return bag->source ? 0 : -1;
}

static PyObject *bag_get(Source *source, uint64_t index, bool view) {
    AT_END(give_row) Row *row = take_row(source);
    bags_view blob;
    bags_error err;
    bags_code code;
    if (!row)
        return NULL;
    WITHOUT_GIL(code = bag_reader_get(source->bag, index, &row->scratch, &blob, &err));
    if (call_failed(source->state, code, &err, source->path))
        return NULL;
    return view ? new_view(source->state, (PyObject *)source, blob,
                      !bags_buffer_contains(&row->scratch, blob.data))
                : new_bytes(blob);
}

/* _range(start, stop): read the blobs with one read. */
static PyObject *bag_range(PyObject *self, PyObject *args) {
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(args, "nn", &start, &stop))
        return NULL;
    OWNED Source *source = source_of(self);
    AT_END(give_row) Row *row = source ? take_row(source) : NULL;
    bag_blobs range;
    bags_error err;
    bags_code code;
    if (!row)
        return NULL;
    WITHOUT_GIL(code = bag_reader_get_range(source->bag, (uint64_t)start,
                    (uint64_t)stop, &row->scratch, &range, &err));
    PyObject *list = call_failed(source->state, code, &err, source->path)
                         ? NULL
                         : PyList_New(stop - start);
    for (Py_ssize_t i = 0; list && i < stop - start; i++) {
        PyObject *blob = i % 16 == 0 && PyErr_CheckSignals()
                             ? NULL
                             : new_bytes(bag_blobs_get(&range, (size_t)i));
        if (!blob || PyList_SetItem(list, i, blob))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *bag_at(PyObject *self, PyObject *key, bool view) {
    OWNED Source *source = source_of(self);
    uint64_t index;
    return source && take_index(source, key, &index) ? bag_get(source, index, view)
                                                     : NULL;
}

static PyObject *bag_subscript(PyObject *self, PyObject *key) {
    return PyIndex_Check(key) ? bag_at(self, key, false)
                              : PyObject_CallMethod(self, "_slice", "(O)", key);
}

static PyObject *bag_view(PyObject *self, PyObject *key) {
    return bag_at(self, key, true);
}

static PyObject *bag_item(PyObject *self, Py_ssize_t index) {
    OWNED Source *source = source_of(self);
    return source ? bag_get(source, (uint64_t)index, false) : NULL;
}

static PyObject *bag_size(PyObject *self, void *unused) {
    Source *source = ((Opened *)self)->source;
    (void)unused;
    if (!source)
        return closed_error(self), NULL;
    return PyLong_FromUnsignedLongLong(bag_reader_size(source->bag));
}

static PyMethodDef bag_methods[] = {
    {"view", bag_view, METH_O,
        "view(i)\n--\n\n"
        "Blob i as a read-only memoryview, without a copy if the file is\n"
        "mapped.\n\n"
        "It stays valid when the reader is closed. IndexError: out of range."},
    {"_range", bag_range, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyGetSetDef bag_gets[] = {
    {"size", bag_size, NULL, "Size of the Bag in bytes.", NULL}, {0}};
static PyType_Slot bag_slots[] = {{Py_tp_init, bag_init}, {Py_tp_methods, bag_methods},
    {Py_tp_getset, bag_gets}, {Py_mp_subscript, bag_subscript}, {Py_sq_item, bag_item},
    {0, NULL}};
PyType_Spec bag_spec = {"bags._core.BagReader", sizeof(Opened), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, bag_slots};

/* ---- writer ---- */

/* A coarse clock: cheap where the system has it, but it may be late by some
 * milliseconds. */
static double seconds_now(void) {
#ifdef CLOCK_MONOTONIC_COARSE
    const clockid_t which = CLOCK_MONOTONIC_COARSE;
#else
    const clockid_t which = CLOCK_MONOTONIC;
#endif
    struct timespec now;
    (void)clock_gettime(which, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* _core.BagWriter(path, flush_seconds, options) */
static int out_init(PyObject *self, PyObject *args, PyObject *unused) {
    Written *out = (Written *)self;
    PyObject *path, *named;
    OWNED PyObject *name = NULL;
    bag_writer_options options;
    bags_error err;
    (void)unused;
    if (!PyArg_ParseTuple(args, "OdO", &path, &out->flush_seconds, &named) ||
        !begin_init(self) || !take_struct(&options, sizeof options, named) ||
        !PyUnicode_FSConverter(path, &name))
        return -1;
    if (!(out->flush_seconds >= 0)) {
        PyErr_Format(
            PyExc_ValueError, "%S: flush_seconds out of range (minimum 0)", path);
        return -1;
    }
    out->flushed = seconds_now();
    if (begin_writer(out, path) &&
        !(out->bag = bag_writer_open(PyBytes_AsString(name), &options, &err)))
        raise_error(out->base.state, &err, path);
    return out->bag ? 0 : -1;
}

typedef struct Record {
    Py_buffer bytes;
    uint64_t index;
} Record;

static bags_code append_record(Written *out, void *data, bags_error *err) {
    Record *record = (Record *)data;
    bags_code code = bag_writer_append(
        out->bag, record->bytes.buf, (size_t)record->bytes.len, &record->index, err);
    double now = !code && out->flush_seconds > 0 ? seconds_now() : out->flushed;
    if (code || now - out->flushed < out->flush_seconds || now <= out->flushed)
        return code;
    out->flushed = now;
    return bag_writer_flush(out->bag, err);
}

static PyObject *out_append(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"record", "flush", NULL};
    PyObject *object;
    Record record = {0};
    int flush;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O|p:append", words, &object, &flush) ||
        take_bytes(object, &record.bytes))
        return NULL;
    bool good = call_writer(self, append_record, &record);
    PyBuffer_Release(&record.bytes);
    return good ? PyLong_FromUnsignedLongLong(record.index) : NULL;
}

static PyMethodDef out_methods[] = {
    {"append", KEYWORDS(out_append), METH_VARARGS | METH_KEYWORDS,
        "append(record, flush=True)\n--\n\n"
        "Append bytes; returns their index. They are buffered: flush(), and each\n"
        "append flush_seconds after the last time, passes them to the system,\n"
        "whatever `flush` is here."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot out_slots[] = {
    {Py_tp_init, out_init}, {Py_tp_methods, out_methods}, {0, NULL}};
PyType_Spec bag_writer_spec = {"bags._core.BagWriter", sizeof(Written), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, out_slots};
