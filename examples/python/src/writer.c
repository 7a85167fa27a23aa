/* writer.c - DatasetWriter, which also writes shards. */
#include "core.h"

typedef struct Writer {
    Written base;
    Field *fields; /* sorted by name */
    size_t count;
    uint64_t shards, resumed; /* kept when it is closed */
    bool running;             /* the last shard is not full */
    Arena *spare;             /* of one call at a time */
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
                    field_init(writer->base.state, &writer->fields[i], text, type_text,
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
        WITHOUT_GIL(writer->base.writer =
                        bags_writer_open(text, fields, writer->count, options, &err));
        if (!writer->base.writer) {
            raise_error(writer->base.state, &err, path);
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
    uint64_t start = 0, step = 1;
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
        uint64_t limit = 0;
        if (limits[i] != Py_None && !number_converter(limits[i], &limit))
            return -1;
        *values[i] = limit;
    }
    if (start >= step) {
        PyErr_Format(PyExc_ValueError, "shard_start=%llu is not below shard_step=%llu",
            (unsigned long long)start, (unsigned long long)step);
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
    writer->base.state = state_of(Py_TYPE(self));
    options.registry = writer->base.state->registry;
    writer->base.lock = PyThread_allocate_lock();
    if (!writer->base.lock)
        return PyErr_NoMemory(), -1;
    if (writer_fields(writer, spec, codecs) || writer_open(writer, path, &options))
        return -1;
    writer->resumed = bags_writer_resumed((bags_writer *)writer->base.writer);
    writer->base.path = Py_NewRef(path);
    writer->base.process = this_process();
    return 0;
}

/* ---- appending ---- */

static int add_value(
    Writer *writer, Arena *arena, const Field *field, PyObject *object) {
    int code = arena_add(writer->base.state, arena, field, object);
    if (code && field->how != HOW_CALL)
        locate_error(writer->base.path, field->name_utf8, NULL);
    return code;
}

/* The values of a field. Runs Python: iterators, encoders. */
static int add_field(
    Writer *writer, Arena *arena, const Field *field, PyObject *object) {
    if (!field->sequence)
        return add_value(writer, arena, field, object);
    PyObject *iterator = PyUnicode_Check(object) || PyBytes_Check(object)
                             ? NULL
                             : PyObject_GetIter(object);
    PyObject *item;
    int code = iterator ? 0 : -1;
    if (!iterator && (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError)))
        PyErr_Format(PyExc_TypeError,
            "%S: field \"%s\": a sequence of values is required, not %R",
            writer->base.path, field->name_utf8, (PyObject *)Py_TYPE(object));
    while (!code && (item = PyIter_Next(iterator)) != NULL) {
        code = add_value(writer, arena, field, item);
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    return PyErr_Occurred() ? -1 : code;
}

/* Append what is in the arena: counts[i] values of field i. */
typedef struct Append {
    bags_entry *entries;
    uint64_t index;
} Append;

static bags_code append_entries(Written *base, void *data, bags_error *err) {
    Writer *writer = (Writer *)base;
    bags_writer *to = (bags_writer *)base->writer;
    Append *append = (Append *)data;
    bags_code code = bags_writer_append(to, append->entries, writer->count, err);
    uint64_t shards = bags_writer_shards(to);
    if (!code)
        writer->running = shards == writer->shards;
    writer->shards = shards;
    append->index = bags_writer_length(to) - 1;
    return code;
}

static PyObject *append_values(Writer *writer, Arena *arena, bags_entry *entries) {
    Append append = {entries, 0};
    size_t at = 0;
    for (size_t i = 0; i < writer->count; i++) {
        entries[i].field = writer->fields[i].name_utf8;
        entries[i].values = arena->values + at;
        at += entries[i].count;
    }
    return call_writer((PyObject *)writer, append_entries, &append)
               ? PyLong_FromUnsignedLongLong(append.index)
               : NULL;
}

/* KeyError that names a field of the datapoint that the spec lacks. */
static bool refuse_others(Writer *writer, PyObject *datapoint) {
    PyObject *names = PyMapping_Keys(datapoint);
    PyObject *spec = names ? fields_spec(writer->fields, writer->count) : NULL;
    for (Py_ssize_t i = 0; spec && !PyErr_Occurred() && i < PyList_Size(names); i++) {
        PyObject *name = PyList_GetItem(names, i);
        if (PyDict_Contains(spec, name) == 0)
            PyErr_Format(PyExc_KeyError, "%S: the spec has no field %R",
                writer->base.path, name);
    }
    Py_XDECREF(names);
    Py_XDECREF(spec);
    return !PyErr_Occurred();
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
    if (!writer->base.writer)
        return closed_error(self), NULL;
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
        if (!value && PyErr_ExceptionMatches(PyExc_KeyError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_KeyError, "%S: the datapoint has no field \"%s\"",
                writer->base.path, field->name_utf8);
        }
        entries[i].count = arena->count - before;
        Py_XDECREF(value);
    }
    if (good && PyDict_Size(datapoint) != (Py_ssize_t)writer->count)
        good = refuse_others(writer, datapoint);
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

static bags_code flush_dataset(Written *writer, void *unused, bags_error *err) {
    (void)unused;
    return bags_writer_flush((bags_writer *)writer->writer, err);
}

static PyObject *writer_flush(PyObject *self, PyObject *unused) {
    (void)unused;
    return call_writer(self, flush_dataset, NULL) ? Py_NewRef(Py_None) : NULL;
}

static bags_code sync_dataset(Written *writer, void *unused, bags_error *err) {
    (void)unused;
    return bags_writer_sync((bags_writer *)writer->writer, err);
}

static PyObject *writer_sync(PyObject *self, PyObject *unused) {
    (void)unused;
    return call_writer(self, sync_dataset, NULL) ? Py_NewRef(Py_None) : NULL;
}

static bags_code close_dataset(Written *base, void *unused, bags_error *err) {
    bags_writer *writer = (bags_writer *)base->writer;
    (void)unused;
    base->length = bags_writer_length(writer);
    base->size = bags_writer_size(writer);
    base->writer = NULL;
    return bags_writer_close(writer, err);
}

static PyObject *writer_close(PyObject *self, PyObject *unused) {
    (void)unused;
    return close_writer(self, close_dataset);
}

static Py_ssize_t writer_len(PyObject *self) {
    Written *base = (Written *)self;
    bags_writer *writer = (bags_writer *)base->writer;
    return (Py_ssize_t)(writer ? bags_writer_length(writer) : base->length);
}

static PyObject *writer_number(PyObject *self, void *which) {
    Writer *writer = (Writer *)self;
    bags_writer *open = (bags_writer *)writer->base.writer;
    uint64_t number = *(const char *)which == 'r'   ? writer->resumed
                      : *(const char *)which == 'n' ? writer->shards + writer->running
                      : open                        ? bags_writer_size(open)
                                                    : writer->base.size;
    return PyLong_FromUnsignedLongLong(number);
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
    bags_writer_close((bags_writer *)writer->base.writer, NULL);
    if (writer->base.lock)
        PyThread_free_lock(writer->base.lock);
    for (size_t i = 0; i < writer->count; i++)
        field_clear(&writer->fields[i]);
    PyMem_Free(writer->fields);
    if (writer->spare)
        arena_free(writer->spare);
    PyMem_Free(writer->spare);
    Py_XDECREF(writer->base.path);
    free_object(self);
}

static PyMethodDef writer_methods[] = {
    {"append", KEYWORDS(writer_append), METH_VARARGS | METH_KEYWORDS,
        "append(datapoint, flush=True)\n--\n\n"
        "Append a dict with a value for every field, or nothing of it; returns\n"
        "its index.\n\n"
        "A sequence may be any iterable. It is buffered: flush() passes it to\n"
        "the system, whatever `flush` is here.\n"
        "Errors: KeyError (other fields, no encoder), TypeError, ValueError (a\n"
        "value that its type cannot hold)."},
    {"flush", writer_flush, METH_NOARGS,
        "flush()\n--\n\n"
        "Pass all datapoints to the system: they survive the end of this\n"
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
    {"closed", is_writer_closed, NULL, "True after close().", NULL}, {0}};
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
