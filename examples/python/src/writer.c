/* writer.c - DatasetWriter, which also writes shards. */
#include "core.h"

typedef struct Writer {
    PyObject_HEAD State *state;
    bags_writer *writer;     /* NULL: closed */
    PyThread_type_lock lock; /* one thread at a time */
    PyObject *path;
    pid_t process;
    Field *fields; /* sorted by name */
    size_t count;
    uint64_t length, size, shards, resumed; /* kept when it is closed */
    bool running;                           /* the last shard is not full */
    Arena *spare;                           /* of one call at a time */
} Writer;

/* ---- opening ---- */

/* Fields of a spec, {name: type}, sorted by name. */
static int writer_fields(Writer *writer, PyObject *spec, PyObject *codecs) {
    PyObject *names = PyDict_Check(spec) ? PyMapping_Keys(spec) : NULL;
    Py_ssize_t count = names ? PyList_Size(names) : 0;
    if (!names && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "spec must be a dict of names and types, not %R",
            (PyObject *)Py_TYPE(spec));
    if (!names || PyList_Sort(names)) {
        Py_XDECREF(names);
        return -1;
    }
    writer->fields = (Field *)PyMem_Calloc((size_t)count + 1, sizeof *writer->fields);
    if (!writer->fields)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; writer->fields && !PyErr_Occurred() && i < count; i++) {
        PyObject *name = PyList_GetItem(names, i), *type = PyObject_GetItem(spec, name);
        Py_ssize_t size, type_size;
        if (type && PyUnicode_Check(name) && PyUnicode_Check(type)) {
            const char *text = PyUnicode_AsUTF8AndSize(name, &size);
            const char *type_text = PyUnicode_AsUTF8AndSize(type, &type_size);
            if (text && type_text) {
                writer->count = (size_t)i + 1;
                if (strlen(text) != (size_t)size ||
                    strlen(type_text) != (size_t)type_size)
                    PyErr_Format(PyExc_ValueError, "%R: %R contains NUL", name, type);
                else
                    field_init(writer->state, &writer->fields[i], text, type_text,
                        codecs, false);
            }
        } else if (type) {
            PyErr_Format(
                PyExc_TypeError, "%R: %R: a name and a type must be str", name, type);
        }
        Py_XDECREF(type);
    }
    Py_DECREF(names);
    return PyErr_Occurred() ? -1 : 0;
}

static int writer_open(
    Writer *writer, PyObject *path, const bags_writer_options *options) {
    PyObject *name;
    bags_error err;
    bags_field *fields = (bags_field *)PyMem_Calloc(writer->count + 1, sizeof *fields);
    if (!fields) {
        PyErr_NoMemory();
        return -1;
    }
    int code = PyUnicode_FSConverter(path, &name) ? 0 : -1;
    if (!code) {
        const char *text = PyBytes_AsString(name);
        for (size_t i = 0; i < writer->count; i++) {
            fields[i].name = writer->fields[i].name_utf8;
            fields[i].type = PyUnicode_AsUTF8AndSize(writer->fields[i].text, NULL);
        }
        Py_BEGIN_ALLOW_THREADS writer->writer =
            bags_writer_open(text, fields, writer->count, options, &err);
        Py_END_ALLOW_THREADS if (!writer->writer) {
            raise_error(writer->state, &err, path);
            code = -1;
        }
        Py_DECREF(name);
    }
    PyMem_Free(fields);
    return code;
}

static int writer_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"directory", "spec", "encoders", "shard_size",
        "shard_length", "shard_start", "shard_step", "sharded", "resume", "append",
        "checksum", "keep_idx", "sync", NULL};
    Writer *writer = (Writer *)self;
    PyObject *path, *spec, *codecs = NULL, *limits[2] = {Py_None, Py_None};
    unsigned long long start = 0, step = 1;
    int sharded = 0, resume = 0, append = 0, checksum = 0, keep_idx = 0, sync = 0;
    bags_writer_options options;
    uint64_t *values[2] = {&options.shard_size, &options.shard_length};
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OOOO&O&$pppppp", words, &path,
            &spec, &codecs, &limits[0], &limits[1], number_converter, &start,
            number_converter, &step, &sharded, &resume, &append, &checksum, &keep_idx,
            &sync))
        return -1;
    if (writer->fields) {
        PyErr_SetString(PyExc_TypeError, "__init__ was called before");
        return -1;
    }
    for (int i = 0; i < 2; i++) {
        unsigned long long limit = 0;
        if (limits[i] != Py_None && !number_converter(limits[i], &limit))
            return -1;
        *values[i] = limit;
    }
    if (start >= step) {
        PyErr_Format(PyExc_ValueError, "shard_start=%llu is not below shard_step=%llu",
            start, step);
        return -1;
    }
    options.shard_start = start;
    options.shard_stop = sharded || start || step > 1 ? step : 0;
    options.sharded = sharded;
    options.resume = resume;
    options.append = append;
    options.checksum = checksum;
    options.keep_idx = keep_idx;
    options.no_sync = !sync;
    writer->state = state_of(Py_TYPE(self));
    options.registry = writer->state->registry;
    writer->lock = PyThread_allocate_lock();
    if (!writer->lock)
        return PyErr_NoMemory(), -1;
    if (writer_fields(writer, spec, codecs) || writer_open(writer, path, &options))
        return -1;
    writer->resumed = bags_writer_resumed(writer->writer);
    writer->path = Py_NewRef(path);
    writer->process = getpid();
    return 0;
}

/* ---- appending ---- */

/* The values of a field. Runs Python: iterators, encoders. */
static int add_field(
    Writer *writer, Arena *arena, const Field *field, PyObject *object) {
    if (!field->sequence)
        return arena_add(writer->state, arena, field, object);
    if (PyUnicode_Check(object) || PyBytes_Check(object)) {
        PyErr_Format(PyExc_TypeError,
            "field \"%s\": a sequence of values is required, not %R", field->name_utf8,
            (PyObject *)Py_TYPE(object));
        return -1;
    }
    PyObject *iterator = PyObject_GetIter(object), *item;
    int code = iterator ? 0 : -1;
    while (!code && (item = PyIter_Next(iterator)) != NULL) {
        code = arena_add(writer->state, arena, field, item);
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    return PyErr_Occurred() ? -1 : code;
}

/* Append what is in the arena: counts[i] values of field i. */
static PyObject *append_values(Writer *writer, Arena *arena, bags_entry *entries) {
    bags_code code = BAGS_OK;
    bags_error err;
    bool open;
    uint64_t length = 0;
    size_t at = 0;
    for (size_t i = 0; i < writer->count; i++) {
        entries[i].field = writer->fields[i].name_utf8;
        entries[i].values = arena->values + at;
        at += entries[i].count;
    }
    Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock(writer->lock, WAIT_LOCK);
    if ((open = writer->writer != NULL)) {
        code = bags_writer_append(writer->writer, entries, writer->count, &err);
        uint64_t shards = bags_writer_shards(writer->writer);
        if (!code)
            writer->running = shards == writer->shards;
        writer->shards = shards;
        length = bags_writer_length(writer->writer);
    }
    PyThread_release_lock(writer->lock);
    Py_END_ALLOW_THREADS if (!open) return closed_error(), NULL;
    if (code)
        return raise_error(writer->state, &err, writer->path);
    return PyLong_FromUnsignedLongLong(length - 1);
}

static PyObject *writer_append(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"datapoint", "flush", NULL};
    Writer *writer = (Writer *)self;
    PyObject *datapoint, *out = NULL;
    bags_entry few[16], *entries = few;
    int flush;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!|p", words, &PyDict_Type, &datapoint, &flush))
        return NULL;
    if (!writer->writer)
        return closed_error(), NULL;
    if (is_forked(writer->process, writer->path))
        return NULL;
    Arena *arena = __atomic_exchange_n(&writer->spare, NULL, __ATOMIC_ACQ_REL);
    if (!arena)
        arena = (Arena *)PyMem_Calloc(1, sizeof *arena);
    if (arena && writer->count > 16)
        entries = (bags_entry *)PyMem_Calloc(writer->count, sizeof *entries);
    if (!arena || !entries) {
        PyMem_Free(arena);
        return PyErr_NoMemory();
    }
    bool good = true;
    for (size_t i = 0; good && i < writer->count; i++) {
        const Field *field = &writer->fields[i];
        size_t before = arena->count;
        PyObject *value = PyObject_GetItem(datapoint, field->name);
        good = value && !add_field(writer, arena, field, value);
        entries[i].count = arena->count - before;
        Py_XDECREF(value);
    }
    if (good && PyDict_Size(datapoint) != (Py_ssize_t)writer->count) {
        PyErr_Format(PyExc_KeyError, "a datapoint has other fields (%R) than the spec",
            datapoint);
        good = false;
    }
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

/* ---- the rest ---- */

/* Call a function of C for the writer, alone and without the GIL. */
static PyObject *writer_call(
    Writer *writer, bags_code (*call)(bags_writer *, bags_error *)) {
    bags_code code = BAGS_OK;
    bags_error err;
    bool open = false, closes = call == bags_writer_close;
    if (!writer->lock) /* __init__ failed */
        return closes ? Py_NewRef(Py_None) : (closed_error(), NULL);
    Py_BEGIN_ALLOW_THREADS PyThread_acquire_lock(writer->lock, WAIT_LOCK);
    if (writer->writer) {
        open = true;
        if (closes) {
            writer->length = bags_writer_length(writer->writer);
            writer->size = bags_writer_size(writer->writer);
        }
        code = call(writer->writer, &err);
        if (closes)
            writer->writer = NULL;
    }
    PyThread_release_lock(writer->lock);
    Py_END_ALLOW_THREADS if (!open && !closes) return closed_error(), NULL;
    if (code)
        return raise_error(writer->state, &err, writer->path);
    Py_RETURN_NONE;
}

static PyObject *writer_flush(PyObject *self, PyObject *unused) {
    (void)unused;
    return writer_call((Writer *)self, bags_writer_flush);
}

static PyObject *writer_sync(PyObject *self, PyObject *unused) {
    (void)unused;
    return writer_call((Writer *)self, bags_writer_sync);
}

static PyObject *writer_close(PyObject *self, PyObject *unused) {
    (void)unused;
    return writer_call((Writer *)self, bags_writer_close);
}

static Py_ssize_t writer_len(PyObject *self) {
    Writer *writer = (Writer *)self;
    return (Py_ssize_t)(writer->writer ? bags_writer_length(writer->writer)
                                       : writer->length);
}

static PyObject *writer_number(PyObject *self, void *which) {
    Writer *writer = (Writer *)self;
    switch (*(const char *)which) {
    case 's':
        return PyLong_FromUnsignedLongLong(
            writer->writer ? bags_writer_size(writer->writer) : writer->size);
    case 'n':
        return PyLong_FromUnsignedLongLong(writer->shards + writer->running);
    case 'r':
        return PyLong_FromUnsignedLongLong(writer->resumed);
    default:
        return PyBool_FromLong(!writer->writer);
    }
}

static PyObject *writer_spec(PyObject *self, void *unused) {
    (void)unused;
    return fields_spec(((Writer *)self)->fields, ((Writer *)self)->count);
}

static int writer_traverse(PyObject *self, visitproc visit, void *arg) {
    Writer *writer = (Writer *)self;
    Py_VISIT(Py_TYPE(self));
    for (size_t i = 0; i < writer->count; i++)
        if (field_visit(&writer->fields[i], visit, arg))
            return -1;
    return 0;
}

static int writer_clear(PyObject *self) {
    Writer *writer = (Writer *)self;
    for (size_t i = 0; i < writer->count; i++)
        Py_CLEAR(writer->fields[i].given);
    return 0;
}

static void writer_dealloc(PyObject *self) {
    Writer *writer = (Writer *)self;
    PyObject_GC_UnTrack(self);
    bags_writer_close(writer->writer, NULL);
    if (writer->lock)
        PyThread_free_lock(writer->lock);
    for (size_t i = 0; i < writer->count; i++)
        field_clear(&writer->fields[i]);
    PyMem_Free(writer->fields);
    if (writer->spare)
        arena_free(writer->spare);
    PyMem_Free(writer->spare);
    Py_XDECREF(writer->path);
    free_object(self);
}

static PyMethodDef writer_methods[] = {
    {"append", (PyCFunction)(void (*)(void))writer_append, METH_VARARGS | METH_KEYWORDS,
        "append(datapoint, flush=True)\n--\n\nAppend a dict with a value for every "
        "field, "
        "or nothing of it; returns its index.\n\nA sequence may be any iterable. It is "
        "buffered: flush() passes it to the system,\nwhatever `flush` is here. Errors: "
        "KeyError (other fields, no encoder),\nTypeError, ValueError and OverflowError "
        "(a "
        "value that its type cannot hold)."},
    {"flush", writer_flush, METH_NOARGS,
        "flush()\n--\n\nPass all datapoints to the system: they survive the end of "
        "this "
        "process."},
    {"sync", writer_sync, METH_NOARGS,
        "sync()\n--\n\nWait until all datapoints are on stable storage."},
    {"close", writer_close, METH_NOARGS,
        "close()\n--\n\nFinish the dataset. Closing it again does nothing."},
    {"__reduce__", no_pickle, METH_NOARGS, NULL},
    {"__enter__", enter, METH_NOARGS, NULL}, {"__exit__", leave, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef writer_gets[] = {
    {"spec", writer_spec, NULL, "Types of the fields, by name, sorted.", NULL},
    {"size", writer_number, NULL, "Bytes that the Bags have when it is closed.", "s"},
    {"shards", writer_number, NULL, "Shards begun so far.", "n"},
    {"resumed", writer_number, NULL, "With resume: datapoints that existed.", "r"},
    {"closed", writer_number, NULL, "True after close().", "c"}, {0}};
static PyType_Slot writer_slots[] = {{Py_tp_doc, "The base of the dataset writers."},
    {Py_tp_init, writer_init}, {Py_tp_dealloc, writer_dealloc},
    {Py_tp_traverse, writer_traverse}, {Py_tp_clear, writer_clear},
    {Py_tp_methods, writer_methods}, {Py_tp_getset, writer_gets},
    {Py_sq_length, writer_len}, {0, NULL}};
static PyType_Spec writer_spec_of = {"bags._core.Writer", sizeof(Writer), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, writer_slots};

int add_writer(PyObject *module, State *state) {
    (void)state;
    return add_type(module, &writer_spec_of, true) ? 0 : -1;
}
