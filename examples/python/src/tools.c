/* tools.c - functions on datasets: recover, verify, checksum, finalize, zip; and Index. */
#include "core.h"

/* A path as bytes of C, with "O&"; to be released. */
#define PATH PyUnicode_FSConverter

static State *module_state(PyObject *module) {
    return (State *)PyModule_GetState(module);
}

/* Raise the error of a path, unless the code is BAGS_OK, and release the path. */
static bool done(
    PyObject *module, bags_code code, const bags_error *err, PyObject *path) {
    PyObject *shown =
        PyUnicode_DecodeFSDefaultAndSize(PyBytes_AsString(path), PyBytes_Size(path));
    if (code)
        raise_error(module_state(module), err, shown);
    Py_XDECREF(shown);
    Py_DECREF(path);
    return !code;
}

/* The path, to be released, and the options of a tool. */
static bool take(PyObject *args, PyObject *kwargs, const Option *options, void *to,
    PyObject **path) {
    PyObject *object;
    if (!PyArg_ParseTuple(args, "O", &object) ||
        !set_options(options, to, kwargs, object, NULL, NULL, NULL))
        return false;
    return PATH(object, path);
}

/* shard_step of other workers is what C calls shard_stop. */
#define WORKER(type)                                                                   \
    OPTION('U', type, shard_start), {                                                  \
        "shard_step", NULL, 'U', offsetof(type, shard_stop)                            \
    }

static const Option recover_options[] = {OPTION('b', bags_recover_options, dry_run),
    OPTION('b', bags_recover_options, keep_idx),
    {"sync", NULL, 'n', offsetof(bags_recover_options, no_sync)},
    WORKER(bags_recover_options), {0}};
static const Option recover_report[] = {
    OPTION('U', bags_recover_report, finished_before),
    OPTION('U', bags_recover_report, finished_now),
    OPTION('U', bags_recover_report, removed), OPTION('U', bags_recover_report, locked),
    OPTION('U', bags_recover_report, failed), OPTION('U', bags_recover_report, length),
    OPTION('U', bags_recover_report, truncated), {0}};

static PyObject *tool_recover(PyObject *module, PyObject *args, PyObject *kwargs) {
    PyObject *path;
    bags_recover_options options;
    bags_recover_report report;
    bags_error err;
    bags_code code;
    memset(&options, 0, sizeof options);
    if (!take(args, kwargs, recover_options, &options, &path))
        return NULL;
    const char *text = PyBytes_AsString(path);
    WITHOUT_GIL(code = bags_recover(text, &options, &report, &err));
    return done(module, code, &err, path) ? options_dict(recover_report, &report)
                                          : NULL;
}

static void add_fault(void *user, const bags_fault *fault) {
    PyGILState_STATE gil = PyGILState_Ensure();
    static const char *const kinds[] = {"file", "blob", "datapoint"};
    PyObject *made =
        PyErr_Occurred()
            ? NULL
            : Py_BuildValue("{szszsssKsKss}", "path", fault->path, "field",
                  fault->field, "kind", kinds[fault->kind], "index", fault->index,
                  "offset", fault->offset, "message", fault->message);
    if (made)
        PyList_Append((PyObject *)user, made);
    Py_XDECREF(made);
    PyGILState_Release(gil);
}

typedef struct Verify {
    bags_verify_options options;
    PyObject *storage;
} Verify;

static int take_storage(void *user, const char *name, PyObject *value) {
    if (strcmp(name, "storage") == 0)
        ((Verify *)user)->storage = value;
    return strcmp(name, "storage") == 0;
}

static const Option verify_options[] = {OPTION('b', bags_verify_options, quick),
    OPTION('b', bags_verify_options, decode),
    OPTION('b', bags_verify_options, allow_gaps),
    OPTION('b', bags_verify_options, allow_empty_file),
    CHOICE(bags_verify_options, unfinished, "refuse skip read"),
    WORKER(bags_verify_options), OPTION('U', bags_verify_options, max_faults), {0}};

static PyObject *tool_verify(PyObject *module, PyObject *args, PyObject *kwargs) {
    PyObject *object, *path, *faults, *storage;
    State *state = module_state(module);
    Verify verify = {.storage = Py_None};
    bags_verify_report report;
    bags_error err;
    bags_code code;
    if (!PyArg_ParseTuple(args, "O", &object) ||
        !set_options(verify_options, &verify.options, kwargs, object, NULL,
            take_storage, &verify) ||
        !PATH(object, &path))
        return NULL;
    verify.options.registry = state->registry;
    verify.options.each = add_fault;
    verify.options.user = faults = PyList_New(0);
    const char *text = PyBytes_AsString(path);
    storage = faults ? open_storage(state, text, verify.storage, &verify.options.env.io)
                     : NULL;
    if (!storage) {
        Py_XDECREF(faults);
        Py_DECREF(path);
        return NULL;
    }
    WITHOUT_GIL(code = bags_verify(text, &verify.options, &report, &err));
    Py_DECREF(storage);
    if (PyList_Size(faults) > 0)
        code = BAGS_OK; /* they say it */
    if (!done(module, code, &err, path) || PyErr_Occurred())
        Py_CLEAR(faults);
    return faults;
}

static const Option checksum_options[] = {OPTION('b', bags_checksum_options, replace),
    {"sync", NULL, 'n', offsetof(bags_checksum_options, no_sync)},
    WORKER(bags_checksum_options), {0}};
static const Option checksum_report[] = {OPTION('U', bags_checksum_report, made),
    OPTION('U', bags_checksum_report, kept), OPTION('U', bags_checksum_report, blobs),
    OPTION('U', bags_checksum_report, size), {0}};

static PyObject *tool_checksum(PyObject *module, PyObject *args, PyObject *kwargs) {
    PyObject *path;
    bags_checksum_options options;
    bags_checksum_report report;
    bags_error err;
    bags_code code;
    memset(&options, 0, sizeof options);
    if (!take(args, kwargs, checksum_options, &options, &path))
        return NULL;
    const char *text = PyBytes_AsString(path);
    WITHOUT_GIL(code = bags_checksum(text, &options, &report, &err));
    return done(module, code, &err, path) ? options_dict(checksum_report, &report)
                                          : NULL;
}

static PyObject *tool_finalize(PyObject *module, PyObject *object) {
    PyObject *path;
    uint64_t renamed = 0;
    bags_error err;
    bags_code code;
    if (!PATH(object, &path))
        return NULL;
    const char *text = PyBytes_AsString(path);
    WITHOUT_GIL(code = bags_finalize(text, NULL, &renamed, &err));
    return done(module, code, &err, path) ? PyLong_FromUnsignedLongLong(renamed) : NULL;
}

static PyObject *tool_zip(PyObject *module, PyObject *args) {
    PyObject *path, *to;
    bags_error err;
    bags_code code;
    if (!PyArg_ParseTuple(args, "O&O&", PATH, &path, PATH, &to))
        return NULL;
    const char *text = PyBytes_AsString(path), *to_text = PyBytes_AsString(to);
    WITHOUT_GIL(code = bags_zip(text, to_text, NULL, &err));
    Py_DECREF(to);
    return done(module, code, &err, path) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *tool_index(PyObject *module, PyObject *args) {
    PyObject *path;
    const char *field;
    bags_error err;
    bags_code code;
    if (!PyArg_ParseTuple(args, "O&s", PATH, &path, &field))
        return NULL;
    const char *text = PyBytes_AsString(path);
    WITHOUT_GIL(code = bags_index_build(text, field, NULL, &err));
    return done(module, code, &err, path) ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef tools[] = {
    {"recover", KEYWORDS(tool_recover), METH_VARARGS | METH_KEYWORDS,
        "recover(path, *, dry_run=False, keep_idx=False, sync=True, shard_start=0, "
        "shard_step=0)\n--\n\n"
        "Finish what crashed writers left; a dict of numbers of shards,\n"
        "datapoints and bytes."},
    {"verify", KEYWORDS(tool_verify), METH_VARARGS | METH_KEYWORDS,
        "verify(path, *, quick=False, decode=False, allow_gaps=False, "
        "allow_empty_file=False,\n"
        "       unfinished='refuse', shard_start=0, shard_step=0, max_faults=0, "
        "storage=None)\n--\n\n"
        "Every fault of a dataset or Bag: a list of dicts, empty if there is\n"
        "none."},
    {"checksum", KEYWORDS(tool_checksum), METH_VARARGS | METH_KEYWORDS,
        "checksum(path, *, replace=False, sync=True, shard_start=0, "
        "shard_step=0)\n--\n\n"
        "Write checksums next to the Bags; a dict of numbers."},
    {"finalize", tool_finalize, METH_O,
        "finalize(path)\n--\n\n"
        "Close the gaps between shards, as Python's bags needs; the number of\n"
        "shards that were renamed."},
    {"write_zip", tool_zip, METH_VARARGS,
        "write_zip(dataset, path)\n--\n\n"
        "Write a dataset as one zip file, which readers open as PATH."},
    {"build_index", tool_index, METH_VARARGS,
        "build_index(path, field)\n--\n\n"
        "Build the index of a field, for reader.index."},
    {NULL, NULL, 0, NULL}};

/* ---- Index ---- */

typedef struct Index {
    PyObject_HEAD Source *source;
    bags_index *index;
} Index;

PyObject *open_index(
    Source *source, const char *path, size_t field, const bags_io *io) {
    Index *self = (Index *)new_object(source->state->index);
    bags_index_options options;
    bags_error err;
    memset(&options, 0, sizeof options);
    options.env.io = io;
    if (!self)
        return NULL;
    self->source = (Source *)Py_NewRef((PyObject *)source);
    WITHOUT_GIL(
        self->index = bags_index_open(path, source->reader, field, &options, &err));
    if (self->index)
        return (PyObject *)self;
    Py_DECREF((PyObject *)self);
    return raise_error(source->state, &err, source->path);
}

/* A key: an int, a float, a str or bytes. None: no bound. */
static bool index_key(
    State *state, Arena *arena, PyObject *object, double *real, bags_value *key) {
    Field field = {0};
    if (PyFloat_Check(object)) {
        *real = PyFloat_AsDouble(object);
        *key = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, real);
        return true;
    }
    field.how = PyUnicode_Check(object) ? HOW_UTF8
                : PyIndex_Check(object) ? HOW_INT
                                        : HOW_BYTES;
    size_t at = arena->count;
    if (arena_add(state, arena, &field, object))
        return false;
    *key = arena->values[at];
    if (key->kind == BAGS_KIND_BLOB)
        key->kind = BAGS_KIND_BYTES;
    return true;
}

/* The datapoints at the positions start .. stop. */
static PyObject *index_points(Index *self, Row *row, uint64_t start, uint64_t stop) {
    bags_error err;
    PyObject *out = PyList_New((Py_ssize_t)(stop - start));
    for (uint64_t i = start; out && i < stop; i++) {
        uint64_t datapoint = 0;
        bags_code code;
        WITHOUT_GIL(code = bags_index_get(
                        self->index, i, &row->scratch, &row->row, &datapoint, &err));
        PyObject *number =
            code ? raise_error(self->source->state, &err, self->source->path)
                 : PyLong_FromUnsignedLongLong(datapoint);
        if (!number || PyList_SetItem(out, (Py_ssize_t)(i - start), number))
            Py_CLEAR(out);
    }
    return out;
}

typedef bags_code (*find_one)(const bags_index *, const bags_value *, bags_buffer *,
    uint64_t *, uint64_t *, bags_error *);

/* with `one`: the datapoints of a key; otherwise of the keys from .. to. */
static PyObject *index_find(
    PyObject *object, PyObject *from, PyObject *to, find_one one) {
    Index *self = (Index *)object;
    State *state = self->source->state;
    Arena arena = {0};
    double reals[2];
    bags_value keys[2];
    bags_error err;
    bags_code code;
    uint64_t start = 0, stop = 0;
    PyObject *out = NULL;
    Row *row = take_row(self->source);
    if (row &&
        (from == Py_None || index_key(state, &arena, from, &reals[0], &keys[0])) &&
        (to == Py_None || index_key(state, &arena, to, &reals[1], &keys[1]))) {
        const bags_value *first = from == Py_None ? NULL : &keys[0];
        const bags_value *last = to == Py_None ? NULL : &keys[1];
        WITHOUT_GIL(
            code = one ? one(self->index, first, &row->scratch, &start, &stop, &err)
                       : bags_index_find_range(self->index, first, last, &row->scratch,
                             &start, &stop, &err));
        out = code ? raise_error(state, &err, self->source->path)
                   : index_points(self, row, start, stop);
    }
    if (row)
        give_row(self->source, row);
    arena_reset(&arena);
    arena_free(&arena);
    return out;
}

static PyObject *index_exact(PyObject *self, PyObject *key) {
    if (key == Py_None)
        return PyErr_SetString(PyExc_TypeError, "a key must not be None"), NULL;
    return index_find(self, key, Py_None, bags_index_find);
}

static PyObject *index_prefix(PyObject *self, PyObject *key) {
    if (key == Py_None)
        return PyErr_SetString(PyExc_TypeError, "a key must not be None"), NULL;
    return index_find(self, key, Py_None, bags_index_find_prefix);
}

static PyObject *index_range(PyObject *self, PyObject *args) {
    PyObject *from, *to;
    return PyArg_ParseTuple(args, "OO", &from, &to) ? index_find(self, from, to, NULL)
                                                    : NULL;
}

static void index_dealloc(PyObject *self) {
    bags_index_close(((Index *)self)->index);
    Py_XDECREF((PyObject *)((Index *)self)->source);
    free_object(self);
}

static PyMethodDef index_methods[] = {
    {"find", index_exact, METH_O,
        "find(key)\n--\n\n"
        "Numbers of the datapoints with this key, a list; IndexError never."},
    {"range", index_range, METH_VARARGS,
        "range(start, stop)\n--\n\n"
        "Datapoints with start <= key < stop, in the order of the keys; None:\n"
        "no bound."},
    {"prefix", index_prefix, METH_O,
        "prefix(text)\n--\n\nDatapoints whose key begins with it."},
    {NULL, NULL, 0, NULL}};
static PyType_Slot index_slots[] = {
    {Py_tp_doc, "The index of a field: see DatasetReader.index and build_index."},
    {Py_tp_dealloc, index_dealloc}, {Py_tp_methods, index_methods}, {0, NULL}};
static PyType_Spec index_spec = {"bags._core.Index", sizeof(Index), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, index_slots};

int add_tools(PyObject *module, State *state) {
    state->index = add_type(module, &index_spec, NULL, true);
    return state->index ? PyModule_AddFunctions(module, tools) : -1;
}
