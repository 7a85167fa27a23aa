/* tools.c - functions on datasets, which bags/tools.py documents; and Index. */
#include "core.h"

/* ---- functions on datasets ---- */

typedef union Options {
    bags_recover_options recover;
    bags_verify_options verify;
    bags_checksum_options checksum;
} Options;
typedef union Report {
    bags_recover_report recover;
    bags_verify_report verify;
    bags_checksum_report checksum;
    uint64_t renamed;
} Report;

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
static const Option verify_options[] = {OPTION('b', bags_verify_options, quick),
    OPTION('b', bags_verify_options, decode),
    OPTION('b', bags_verify_options, allow_gaps),
    OPTION('b', bags_verify_options, allow_empty_file),
    CHOICE(bags_verify_options, unfinished, "refuse skip read"),
    WORKER(bags_verify_options), OPTION('U', bags_verify_options, max_faults), {0}};
static const Option checksum_options[] = {OPTION('b', bags_checksum_options, replace),
    {"sync", NULL, 'n', offsetof(bags_checksum_options, no_sync)},
    WORKER(bags_checksum_options), {0}};
static const Option checksum_report[] = {OPTION('U', bags_checksum_report, made),
    OPTION('U', bags_checksum_report, kept), OPTION('U', bags_checksum_report, blobs),
    OPTION('U', bags_checksum_report, size), {0}};
static const Option finalize_report[] = {OPTION('U', Report, renamed), {0}};
static const Option none[] = {{0}};

enum { RECOVER, VERIFY, CHECKSUM, FINALIZE, ZIP, INDEX, TOOLS };

static const struct Tool {
    const char *name;
    const Option *options, *report;
} tools[TOOLS] = {{"recover", recover_options, recover_report},
    {"verify", verify_options, none}, {"checksum", checksum_options, checksum_report},
    {"finalize", none, finalize_report}, {"zip", none, none}, {"index", none, none}};

static bags_code call_tool(int tool, const char *path, const char *other,
    const Options *options, Report *report, bags_error *err) {
    switch (tool) {
    case RECOVER:
        return bags_recover(path, &options->recover, &report->recover, err);
    case VERIFY:
        return bags_verify(path, &options->verify, &report->verify, err);
    case CHECKSUM:
        return bags_checksum(path, &options->checksum, &report->checksum, err);
    case FINALIZE:
        return bags_finalize(path, NULL, &report->renamed, err);
    case ZIP:
        return bags_zip(path, other, NULL, err);
    default:
        return bags_index_build(path, other, NULL, err);
    }
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

/* tool(name, path, other, options, storage, faults): the report as a dict. Paths are bytes;
 * other: a path or field; storage, and faults, a list, are of verify. */
static PyObject *run_tool(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *name, *path, *other;
    PyObject *named, *from, *faults, *out = NULL;
    int tool = 0;
    Options options;
    Report report;
    bags_error err;
    bags_code code;
    if (!PyArg_ParseTuple(args, "syyOOO!", &name, &path, &other, &named, &from,
            &PyList_Type, &faults))
        return NULL;
    while (tool < TOOLS && strcmp(tools[tool].name, name) != 0)
        tool++;
    if (tool == TOOLS)
        return PyErr_SetString(PyExc_KeyError, name), NULL;
    memset(&options, 0, sizeof options);
    memset(&report, 0, sizeof report);
    PyObject *shown = PyUnicode_DecodeFSDefault(path), *storage = NULL;
    bool good = shown && set_options(tools[tool].options, &options, named, shown, NULL,
                             NULL, NULL);
    if (good && tool == VERIFY) {
        options.verify.registry = state->registry;
        options.verify.each = add_fault;
        options.verify.user = faults;
        storage = open_storage(state, path, from, &options.verify.env.io);
        good = storage != NULL;
    }
    if (good) {
        WITHOUT_GIL(code = call_tool(tool, path, other, &options, &report, &err));
        if (code && tool == ZIP && strncmp(err.message, other, strlen(other)) == 0)
            SET(shown, PyUnicode_DecodeFSDefault(other));
        if (code && PyList_Size(faults) == 0)
            raise_error(state, &err, shown);
        out = PyErr_Occurred() ? NULL : options_dict(tools[tool].report, &report);
    }
    Py_XDECREF(storage);
    Py_XDECREF(shown);
    return out;
}

static PyMethodDef functions[] = {
    {"tool", run_tool, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

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
    if (PyFloat_Check(object)) {
        *real = PyFloat_AsDouble(object);
        *key = bags_array(BAGS_DTYPE_FLOAT64, 0, NULL, real);
        return true;
    }
    if (arena_any(state, arena, object))
        return false;
    *key = arena->values[arena->count - 1];
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
        if (code == BAGS_ERROR_VALUE)
            locate_error(self->source->path, NULL, NULL);
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
    return PyArg_ParseTuple(args, "OO:range", &from, &to)
               ? index_find(self, from, to, NULL)
               : NULL;
}

static PyObject *index_repr(PyObject *self) {
    return PyUnicode_FromFormat("<bags.Index of %R>", ((Index *)self)->source->path);
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
    {Py_tp_dealloc, index_dealloc}, {Py_tp_repr, index_repr},
    {Py_tp_methods, index_methods}, {0, NULL}};
static PyType_Spec index_spec = {"bags._core.Index", sizeof(Index), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, index_slots};

int add_tools(PyObject *module, State *state) {
    state->index = add_type(module, &index_spec, NULL, true);
    return state->index ? PyModule_AddFunctions(module, functions) : -1;
}
