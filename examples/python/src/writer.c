/* writer.c - DatasetWriter, with and without shards. */
#include "core.h"

/* ---- opening ---- */

static bool writer_open(
    Written *writer, PyObject *path, const bags_writer_options *options) {
    const Closable *base = &writer->base;
    OWNED PyObject *name = NULL;
    bags_error err;
    if (!PyUnicode_FSConverter(path, &name))
        return false;
    const char *text = PyBytes_AsString(name);
    bags_field *fields = (bags_field *)PyMem_Calloc(base->count + 1, sizeof *fields);
    for (size_t i = 0; fields && i < base->count; i++) {
        fields[i].name = base->fields[i].name_utf8;
        fields[i].type = PyUnicode_AsUTF8AndSize(base->fields[i].text, NULL);
    }
    if (fields)
        WITHOUT_GIL(writer->dataset =
                        bags_writer_open(text, fields, base->count, options, &err));
    else
        PyErr_NoMemory();
    if (fields && !writer->dataset)
        raise_error(base->state, &err, path);
    PyMem_Free(fields);
    return writer->dataset != NULL;
}

/* _core.DatasetWriter(path, fields, options); fields: see take_fields, sorted by name. */
static int writer_init(PyObject *self, PyObject *args, PyObject *unused) {
    Written *writer = (Written *)self;
    PyObject *path, *fields, *named;
    bags_writer_options options;
    (void)unused;
    if (!PyArg_ParseTuple(args, "OO!O", &path, &PyList_Type, &fields, &named) ||
        !begin_init(self) || !take_struct(&options, sizeof options, named))
        return -1;
    options.registry = writer->base.state->registry;
    options.any_type = true; /* the types are defined by the encoders passed in */
    if (!take_fields(&writer->base, path, fields) || !begin_writer(writer, path) ||
        !writer_open(writer, path, &options))
        return -1;
    writer->resumed = bags_writer_resumed(writer->dataset);
    return 0;
}

/* ---- appending ---- */

static int add_value(
    Written *writer, Arena *arena, const Field *field, PyObject *object) {
    int code = arena_add(writer->base.state, arena, field, object);
    if (code)
        place_error(field->how == HOW_CALL, "%S: field \"%s\": datapoint %llu",
            writer->base.path, field->name_utf8,
            (unsigned long long)written_number(writer, 'l'));
    return code;
}

/* Add the values of a field. Runs Python code: iterators, encoders. */
static int add_field(
    Written *writer, Arena *arena, const Field *field, PyObject *object) {
    if (!field->sequence)
        return add_value(writer, arena, field, object);
    /* Iterating over it would yield keys, or values in arbitrary order. The limited API
     * has the flag of collections.abc.Mapping, but not its name, Py_TPFLAGS_MAPPING. */
    bool unordered =
        PyAnySet_Check(object) || PyType_HasFeature(Py_TYPE(object), 1UL << 6);
    OWNED PyObject *iterator =
        unordered || PyUnicode_Check(object) || PyBytes_Check(object)
            ? NULL
            : PyObject_GetIter(object);
    /* Other iterables, such as lists and NumPy arrays, run no user code. */
    bool runs = iterator && !PyList_CheckExact(object) && !PyTuple_CheckExact(object) &&
                (!PyObject_CheckBuffer(object) ||
                    PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE));
    PyObject *item;
    int code = iterator ? 0 : -1;
    if (!iterator && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError)))
        PyErr_Format(PyExc_TypeError,
            "%S: field \"%s\": a sequence of values is required, not %R",
            writer->base.path, field->name_utf8, (PyObject *)Py_TYPE(object));
    while (!code && (!runs || !arena_keep(arena)) &&
           (item = PyIter_Next(iterator)) != NULL) {
        code = add_value(writer, arena, field, item);
        Py_DECREF(item);
    }
    return PyErr_Occurred() ? -1 : code;
}

/* Append the values in the arena: counts[i] values for field i. */
typedef struct Append {
    bags_entry *entries;
    uint64_t index;
} Append;

static bags_code append_entries(Written *writer, void *data, bags_error *err) {
    bags_writer *to = writer->dataset;
    Append *append = (Append *)data;
    bags_code code = bags_writer_append(to, append->entries, writer->base.count, err);
    uint64_t shards = bags_writer_shards(to);
    if (!code)
        writer->running = shards == writer->shards;
    writer->shards = shards;
    append->index = bags_writer_length(to) - 1;
    return code;
}

static PyObject *append_values(Written *writer, Arena *arena, bags_entry *entries) {
    Append append = {entries, 0};
    size_t at = 0;
    for (size_t i = 0; i < writer->base.count; i++) {
        entries[i].field = writer->base.fields[i].name_utf8;
        entries[i].values = arena->values + at;
        at += entries[i].count;
    }
    return call_writer((PyObject *)writer, append_entries, &append)
               ? PyLong_FromUnsignedLongLong(append.index)
               : NULL;
}

/* Raise a KeyError if the names in a datapoint differ from the fields. */
static bool check_names(PyObject *self, PyObject *datapoint) {
    OWNED PyObject *done = PyObject_CallMethod(self, "_check", "O", datapoint);
    return done != NULL;
}

static PyObject *writer_append(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"datapoint", "flush", NULL};
    Written *writer = (Written *)self;
    PyObject *datapoint, *out = NULL;
    bags_entry few[16], *entries = few;
    int flush;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!|p:append", words, &PyDict_Type, &datapoint, &flush))
        return NULL;
    if (!writer->dataset)
        return closed_error(self), NULL;
    Arena *arena = __atomic_exchange_n(&writer->spare, NULL, __ATOMIC_ACQ_REL);
    if (!arena)
        arena = (Arena *)PyMem_Calloc(1, sizeof *arena);
    if (arena && writer->base.count > 16)
        entries = (bags_entry *)PyMem_Calloc(writer->base.count, sizeof *entries);
    if (!arena || !entries) {
        if (arena)
            arena_free(arena);
        PyMem_Free(arena);
        return PyErr_NoMemory();
    }
    bool plain = PyDict_CheckExact(datapoint);
    bool good =
        plain || check_names(self, datapoint); /* before __missing__ can add any */
    for (size_t i = 0; good && i < writer->base.count; i++) {
        const Field *field = &writer->base.fields[i];
        size_t before = arena->count;
        OWNED PyObject *value =
            plain ? Py_XNewRef(PyDict_GetItemWithError(datapoint, field->name))
            : !arena_keep(arena) ? PyObject_GetItem(datapoint, field->name)
                                 : NULL;
        good = value ? !add_field(writer, arena, field, value)
                     : plain && !PyErr_Occurred() && check_names(self, datapoint);
        entries[i].count = arena->count - before;
    }
    if (good && plain && PyDict_Size(datapoint) != (Py_ssize_t)writer->base.count)
        good = check_names(self, datapoint);
    if (good)
        out = append_values(writer, arena, entries);
    if (entries != few)
        PyMem_Free(entries);
    arena_reset(arena);
    arena = __atomic_exchange_n(&writer->spare, arena, __ATOMIC_ACQ_REL);
    if (arena) {
        arena_free(arena);
        PyMem_Free(arena);
    }
    return out;
}

/* ---- close and other methods ---- */

static bags_code sync_dataset(Written *writer, void *unused, bags_error *err) {
    (void)unused;
    return bags_writer_sync(writer->dataset, err);
}

static PyObject *writer_sync(PyObject *self, PyObject *unused) {
    (void)unused;
    return call_writer(self, sync_dataset, NULL) ? Py_NewRef(Py_None) : NULL;
}

static bags_code abort_dataset(Written *writer, void *unused, bags_error *err) {
    (void)unused, (void)err;
    bags_writer_abort(writer->dataset);
    writer->dataset = NULL;
    return BAGS_OK;
}

static PyObject *writer_abort(PyObject *self, PyObject *unused) {
    (void)unused;
    return call_writer(self, abort_dataset, NULL) ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef writer_methods[] = {
    {"append", KEYWORDS(writer_append), METH_VARARGS | METH_KEYWORDS,
        "append(datapoint, flush=True)\n--\n\n"
        "Append a dict with a value for every field, or nothing of it; returns\n"
        "its index.\n\n"
        "A sequence may be any iterable. It is buffered: flush(), and the first\n"
        "datapoint flush_seconds after the last time, passes all to the system,\n"
        "whatever `flush` is here.\n"
        "Errors: KeyError (other fields, no encoder), TypeError, ValueError (a\n"
        "value that its type cannot hold)."},
    {"sync", writer_sync, METH_NOARGS,
        "sync()\n--\n\nWait until all datapoints are on stable storage."},
    {"_abort", writer_abort, METH_NOARGS,
        "_abort()\n--\n\nRemove the unfinished shard, and close."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef writer_gets[] = {
    {"shards", written_get, NULL, "Shards begun so far.", "n"},
    {"resumed", written_get, NULL, "With existing='resume': datapoints that existed.",
        "r"},
    {0}};
static PyType_Slot writer_slots[] = {{Py_tp_init, writer_init},
    {Py_tp_methods, writer_methods}, {Py_tp_getset, writer_gets}, {0, NULL}};
PyType_Spec writer_spec = {"bags._core.DatasetWriter", sizeof(Written), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, writer_slots};
