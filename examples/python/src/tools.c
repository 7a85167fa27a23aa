/* tools.c - functions on datasets, documented in bags/tools.py; and Index. */
#include "core.h"

#include "index.h"

#include <errno.h>

/* ---- functions on datasets ---- */

typedef union Options {
    bags_recover_options recover;
    bags_checksum_options checksum;
    bags_index_options index;
    bags_finalize_options finalize;
} Options;
typedef union Report {
    bags_recover_report recover;
    bags_checksum_report checksum;
    uint64_t renamed;
} Report;

/* The first letter of a tool's name selects the function. */
static bags_code call_tool(char tool, const char *path, const char *field,
    const Options *options, Report *report, bags_error *err) {
    switch (tool) {
    case 'r':
        return bags_recover(path, &options->recover, &report->recover, err);
    case 'c':
        return bags_checksum(path, &options->checksum, &report->checksum, err);
    case 'f':
        return bags_finalize(path, &options->finalize, &report->renamed, err);
    default:
        return bags_index_build(path, field, &options->index, err);
    }
}

/* The values for recover, from a list of names and blobs. The list must outlive
 * them. */
static bags_entry *take_entries(PyObject *list, size_t count) {
    bags_entry *entries =
        (bags_entry *)PyMem_Calloc(count + 1, sizeof *entries + sizeof(bags_value));
    bags_value *values = (bags_value *)(void *)(entries + count + 1);
    bool good = entries != NULL;
    for (size_t i = 0; good && i < count; i++) {
        const char *blob;
        Py_ssize_t size;
        good = PyArg_Parse(PyList_GetItem(list, (Py_ssize_t)i), "(sy#)",
            &entries[i].field, &blob, &size);
        if (good)
            values[i] = bags_blob(blob, (size_t)size);
        entries[i].values = &values[i];
        entries[i].count = 1;
    }
    if (!good && !PyErr_Occurred())
        PyErr_NoMemory();
    if (!good)
        PyMem_Free(entries);
    return good ? entries : NULL;
}

/* tool(name, path, field, options, list, memory, progress): run a tool, and return its
 * report as the bytes of a struct. path and field are bytes; only index uses the field,
 * `memory` and `progress`. recover finds its values in the list. */
static PyObject *run_tool(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *name, *path, *field, *packed;
    Py_ssize_t size;
    unsigned long long memory;
    PyObject *values;
    bags_entry *entries = NULL;
    Progress progress = {0};
    Options options;
    Report report;
    bags_error err;
    bags_code code;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTuple(args, "syyy#O!KO", &name, &path, &field, &packed, &size,
            &PyList_Type, &values, &memory, &progress.call))
        return NULL;
    memcpy(&options, packed,
        (size_t)size < sizeof options ? (size_t)size : sizeof options);
    char tool = *name;
    if (tool == 'i') {
        options.index.registry = state->registry;
        options.index.memory = (size_t)memory;
        options.index.progress = progress_note;
        options.index.user = &progress;
        options.index.env.io = tool_io();
    }
    if (tool == 'r') {
        options.recover.env.io = tool_io();
        options.recover.values_count = (size_t)PyList_Size(values);
        entries = take_entries(values, options.recover.values_count);
        options.recover.values = entries;
        if (!entries)
            return NULL;
    }
    if (tool == 'c')
        options.checksum.env.io = tool_io();
    if (tool == 'f')
        options.finalize.env.io = tool_io();
    WITHOUT_GIL(code = call_tool(tool, path, field, &options, &report, &err));
    PyMem_Free(entries);
    if (progress_end(&progress, !code) && code)
        raise_error_of(state, &err, path);
    return PyErr_Occurred()
               ? NULL
               : PyBytes_FromStringAndSize((const char *)&report, sizeof report);
}

/* ---- verification ---- */

/* The callbacks' argument. */
typedef struct Verifying {
    State *state;
    PyObject *faults, *storage;
    Progress progress;
} Verifying;

static void add_fault(void *user, const bags_fault *fault) {
    PyGILState_STATE gil = PyGILState_Ensure();
    static const char *const kinds[] = {"file", "blob", "datapoint"};
    char message[BAGS_ERROR_SIZE];
    message_of_python(
        fault->message, text_in_message(fault->message, fault->path), message);
    PyObject *made =
        PyErr_Occurred()
            ? NULL
            : Py_BuildValue("{szszsssKsKss}", "path", fault->path, "field",
                  fault->field, "kind", kinds[fault->kind], "index", fault->index,
                  "offset", fault->offset, "message", message);
    if (made)
        PyList_Append(((Verifying *)user)->faults, made);
    Py_XDECREF(made);
    PyGILState_Release(gil);
}

static void add_undecoded(void *user, const bags_field *field, uint64_t blobs) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *made = PyErr_Occurred()
                         ? NULL
                         : Py_BuildValue("(ssK)", field->name, field->type, blobs);
    if (made)
        PyList_Append(((Verifying *)user)->faults, made);
    Py_XDECREF(made);
    PyGILState_Release(gil);
}

/* Returns false once the call shall end. Threads that wait for a server then give
 * up. */
static bool verify_step(Verifying *verifying, uint64_t bytes) {
    verifying->progress.read += bytes;
    bool good = progress_step(&verifying->progress, verifying->progress.read, 0);
    if (!good)
        storage_end(verifying->state, verifying->storage);
    return good;
}

static void verify_progress(void *user, uint64_t bytes) {
    (void)verify_step((Verifying *)user, bytes);
}

/* Hooks for local files: after an exception, every thread ends. */
static bool verify_ends(const void *user) {
    return __atomic_load_n(
        &((const Verifying *)user)->progress.failed, __ATOMIC_RELAXED);
}

static int verify_open(void *user, const char *path, int mode, void **file) {
    return verify_ends(user) ? EINTR : tool_io()->open(NULL, path, mode, file);
}

static int verify_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    return verify_ends(user) ? EINTR
                             : tool_io()->read_at(NULL, file, offset, data, size, done);
}

/* verify(path, options, storage, list, threads, live, max_pixels, progress): appends
 * dicts of faults, and tuples for values that were not decoded, to the list. path is
 * bytes. */
static PyObject *run_verify(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *path;
    PyObject *packed;
    int live;
    unsigned long long max_pixels;
    Verifying verifying = {0};
    AT_END(codecs_free) Codecs codecs = {0};
    bags_verify_all_options options;
    bags_verify_report report;
    bags_error err;
    bags_code code;
    bags_io own = *tool_io();
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTuple(args, "yOOO!IpKO", &path, &packed, &verifying.storage,
            &PyList_Type, &verifying.faults, &options.threads, &live, &max_pixels,
            &verifying.progress.call) ||
        !take_struct(&options.verify, sizeof options.verify, packed))
        return NULL;
    codecs.jpeg.max_pixels = codecs.png.max_pixels = codecs.webp.max_pixels =
        max_pixels;
    if (max_pixels && !copy_codecs(&codecs, state->registry))
        return NULL;
    verifying.state = state;
    own.user = &verifying;
    own.open = verify_open;
    own.read_at = verify_read;
    options.live = live;
    options.verify.registry = max_pixels ? codecs.registry : state->registry;
    options.verify.each = add_fault;
    options.verify.undecoded = add_undecoded;
    options.verify.progress = verify_progress;
    options.verify.user = &verifying;
    options.verify.env.io = storage_io(state, verifying.storage, &own);
    if (!options.verify.env.io)
        return NULL;
    WITHOUT_GIL(code = bags_verify_all(path, &options, &report, &err));
    verifying.progress.total = verifying.progress.read;
    if (progress_end(&verifying.progress, !code) && code)
        raise_error_of(state, &err, path);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* ---- statistics ---- */

static PyObject *stats_number(const bags_value *number) {
    return number->kind == BAGS_KIND_UINT  ? PyLong_FromUnsignedLongLong(number->uint)
           : number->kind == BAGS_KIND_INT ? PyLong_FromLongLong(number->sint)
                                           : PyFloat_FromDouble(number->real);
}

/* (mean, std, min, max, count, quantiles...) for an element. If it has no numbers, all
 * but the count are None. */
static PyObject *stats_element(const bags_statistics *of) {
    const double *q = of->quantiles;
    if (!of->count)
        return Py_BuildValue("(OOOOKOOOOO)", Py_None, Py_None, Py_None, Py_None, 0ULL,
            Py_None, Py_None, Py_None, Py_None, Py_None);
    return Py_BuildValue("(ddNNKddddd)", of->mean, of->std, stats_number(&of->min),
        stats_number(&of->max), (unsigned long long)of->count, q[0], q[1], q[2], q[3],
        q[4]);
}

/* A list of elements for each field. */
static PyObject *stats_lists(
    const bags_statistics *of, const size_t *elements, size_t count) {
    PyObject *out = PyList_New(0);
    for (size_t k = 0; out && k < count; k++) {
        OWNED PyObject *list = PyList_New((Py_ssize_t)elements[k]);
        for (size_t i = 0; list && i < elements[k]; i++) {
            PyObject *element = stats_element(of++);
            if (!element || PyList_SetItem(list, (Py_ssize_t)i, element))
                return Py_DECREF(out), NULL;
        }
        if (!list || PyList_Append(out, list))
            Py_CLEAR(out);
    }
    return out;
}

/* stats(path, storage, options, names, rows, threads, max_pixels, progress): returns
 * stats_lists. path is bytes; options are the reader's; rows contains 64-bit numbers as bytes, or is
 * None. */
static PyObject *run_stats(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *path, *rows;
    PyObject *storage, *packed, *names, *out = NULL;
    Py_ssize_t rows_size;
    bags_reader_options options;
    bags_stats_options how;
    bags_buffer found = {0};
    bags_error err;
    Progress progress = {0};
    unsigned long long max_pixels;
    AT_END(codecs_free) Codecs codecs = {0};
    memset(&how, 0, sizeof how);
    if (!PyArg_ParseTuple(args, "yOOO!z#IKO", &path, &storage, &packed, &PyTuple_Type,
            &names, &rows, &rows_size, &how.threads, &max_pixels, &progress.call) ||
        !take_struct(&options, sizeof options, packed))
        return NULL;
    codecs.png.expand = true;
    codecs.jpeg.max_pixels = codecs.png.max_pixels = codecs.webp.max_pixels =
        max_pixels;
    if (max_pixels && !copy_codecs(&codecs, state->colours))
        return NULL;
    size_t count = (size_t)PyTuple_Size(names);
    const char **fields = (const char **)PyMem_Calloc(count + 1, sizeof *fields);
    size_t *elements = (size_t *)PyMem_Calloc(count + 1, sizeof *elements);
    options.env.io = how.env.io = storage_io(state, storage, map_io());
    options.registry = max_pixels ? codecs.registry : state->colours;
    how.rows = (const uint64_t *)(const void *)rows;
    how.rows_count = (size_t)rows_size / sizeof *how.rows;
    how.progress = progress_step;
    how.user = &progress;
    bool good = fields && elements && options.env.io;
    for (size_t i = 0; good && i < count; i++) {
        fields[i] =
            PyUnicode_AsUTF8AndSize(PyTuple_GetItem(names, (Py_ssize_t)i), NULL);
        good = fields[i] != NULL;
    }
    if (good) {
        bags_reader *reader;
        bags_code code = BAGS_OK;
        WITHOUT_GIL(reader = bags_reader_open(path, &options, &err));
        if (reader)
            WITHOUT_GIL(
                code = bags_stats(reader, fields, count, &how, &found, elements, &err));
        if (progress_end(&progress, reader && !code) && (!reader || code))
            raise_error_of(state, &err, path);
        bags_reader_close(reader);
    }
    if (!PyErr_Occurred() && !good)
        PyErr_NoMemory();
    if (!PyErr_Occurred())
        out = stats_lists(
            (const bags_statistics *)(const void *)found.data, elements, count);
    PyMem_Free(fields);
    PyMem_Free(elements);
    bags_buffer_free(&found);
    return out;
}

/* ---- differences between two datasets ---- */

/* A datapoint's key as an object: None, an int, a float, a str or bytes. */
static PyObject *key_object(const bags_value *key) {
    double real = 0;
    if (!key)
        return Py_NewRef(Py_None);
    const char *data = (const char *)key->data;
    bags_value number =
        key->kind == BAGS_KIND_ARRAY ? index_key_element(key, &real) : *key;
    switch (number.kind) {
    case BAGS_KIND_UINT:
        return PyLong_FromUnsignedLongLong(number.uint);
    case BAGS_KIND_INT:
        return PyLong_FromLongLong(number.sint);
    case BAGS_KIND_UTF8:
        return PyUnicode_DecodeUTF8(data, (Py_ssize_t)key->size, "surrogateescape");
    case BAGS_KIND_ARRAY:
        return PyFloat_FromDouble(real);
    default:
        return PyBytes_FromStringAndSize(data, (Py_ssize_t)key->size);
    }
}

/* The callbacks' argument. */
typedef struct Differing {
    Progress progress; /* the first member, for progress_step */
    PyObject *list;
} Differing;

/* Append (kind, number, key, field or None). A changed datapoint has one such tuple for
 * each field. */
static void add_difference(void *user, const bags_difference *found) {
    PyObject *list = ((Differing *)user)->list;
    PyGILState_STATE gil = PyGILState_Ensure();
    uint64_t number = found->a == UINT64_MAX ? found->b : found->a;
    for (size_t i = 0;
         !PyErr_Occurred() && i < found->fields_count + !found->fields_count; i++) {
        OWNED PyObject *key = key_object(found->key);
        OWNED PyObject *made =
            key ? Py_BuildValue("(iKOz)", (int)found->kind, (unsigned long long)number,
                      key, found->fields_count ? found->fields[i] : NULL)
                : NULL;
        if (made)
            PyList_Append(list, made);
    }
    PyGILState_Release(gil);
}

/* diff(a, b, key, exact, allow_gaps, storage of a, storage of b, list, progress):
 * returns True if bytes were compared. Paths are bytes; key is bytes, empty for none. */
static PyObject *run_diff(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *a, *b, *key;
    int exact, allow_gaps;
    PyObject *storage[2];
    Differing differing = {0};
    bags_diff_options options;
    bags_diff_report report;
    bags_error err;
    bags_code code;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTuple(args, "yyyppOOO!O", &a, &b, &key, &exact, &allow_gaps,
            &storage[0], &storage[1], &PyList_Type, &differing.list,
            &differing.progress.call))
        return NULL;
    options.key = *key ? key : NULL;
    options.exact = exact;
    options.allow_gaps = allow_gaps;
    options.each = add_difference;
    options.progress = progress_step;
    options.user = &differing;
    options.registry = state->registry;
    options.a = storage_io(state, storage[0], tool_io());
    options.b = options.a ? storage_io(state, storage[1], tool_io()) : NULL;
    if (!options.b)
        return NULL;
    WITHOUT_GIL(code = bags_diff(a, b, &options, &report, &err));
    if (progress_end(&differing.progress, !code) && code) {
        bool of_b = !strncmp(err.message, b, strlen(b)) &&
                    (strncmp(err.message, a, strlen(a)) != 0 || strlen(b) > strlen(a));
        raise_error_of(state, &err, of_b ? b : a);
    }
    return PyErr_Occurred() ? NULL : PyBool_FromLong(!report.probable);
}

PyMethodDef tool_functions[] = {{"tool", run_tool, METH_VARARGS, NULL},
    {"verify", run_verify, METH_VARARGS, NULL}, {"diff", run_diff, METH_VARARGS, NULL},
    {"stats", run_stats, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

/* ---- Index ---- */

typedef struct Index {
    PyObject_HEAD Source *source;
    bags_index *index;
} Index;

/* _core.Index(source, field): open an index that build_index made. */
static int index_init(PyObject *object, PyObject *args, PyObject *unused) {
    Index *self = (Index *)object;
    State *state = state_of(Py_TYPE(object));
    PyObject *source;
    OWNED PyObject *name = NULL;
    Py_ssize_t field;
    bags_index_options options;
    bags_error err;
    (void)unused;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTuple(args, "O!n", state->source, &source, &field))
        return -1;
    if (self->source || !((Source *)source)->reader) {
        PyErr_SetString(PyExc_TypeError, "an index is opened by reader.index");
        return -1;
    }
    self->source = (Source *)Py_NewRef(source);
    options.env.io = storage_io(state, self->source->storage, map_io());
    if (!options.env.io || !PyUnicode_FSConverter(self->source->path, &name))
        return -1;
    const char *path = PyBytes_AsString(name);
    WITHOUT_GIL(self->index = bags_index_open(
                    path, self->source->reader, (size_t)field, &options, &err));
    return call_failed(
               state, self->index ? BAGS_OK : err.code, &err, self->source->path)
               ? -1
               : 0;
}

/* Convert a key: an int, a float, a str or bytes. None means no bound. */
static bool key_in_index(
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

/* Get the datapoints at the positions start .. stop. */
static PyObject *index_points(Index *self, Row *row, uint64_t start, uint64_t stop) {
    bags_error err;
    PyObject *out = PyList_New((Py_ssize_t)(stop - start));
    for (uint64_t i = start; out && i < stop; i++) {
        uint64_t datapoint = 0;
        bags_code code;
        WITHOUT_GIL(code = bags_index_get(
                        self->index, i, &row->scratch, &row->row, &datapoint, &err));
        PyObject *number =
            call_failed(self->source->state, code, &err, self->source->path)
                ? NULL
                : PyLong_FromUnsignedLongLong(datapoint);
        if (!number || PyList_SetItem(out, (Py_ssize_t)(i - start), number))
            Py_CLEAR(out);
    }
    return out;
}

/* _find(how, from, to): find the datapoints with this key ('='), whose key has this
 * prefix ('p'), or with keys in from .. to ('r'). */
static PyObject *index_find(PyObject *object, PyObject *args) {
    Index *self = (Index *)object;
    PyObject *from, *to;
    int how;
    if (!PyArg_ParseTuple(args, "COO", &how, &from, &to))
        return NULL;
    if (!self->index)
        return PyErr_SetString(PyExc_ValueError, "not opened"), NULL;
    State *state = self->source->state;
    AT_END(arena_free) Arena arena = {0};
    double reals[2];
    bags_value keys[2];
    bags_error err;
    bags_code code;
    uint64_t start = 0, stop = 0;
    AT_END(give_row) Row *row = take_row(self->source);
    if (!row ||
        (from != Py_None && !key_in_index(state, &arena, from, &reals[0], &keys[0])) ||
        (to != Py_None && !key_in_index(state, &arena, to, &reals[1], &keys[1])))
        return NULL;
    const bags_value *first = from == Py_None ? NULL : &keys[0];
    const bags_value *last = to == Py_None ? NULL : &keys[1];
    bags_buffer *scratch = &row->scratch;
    WITHOUT_GIL(code = how == 'r'   ? bags_index_find_range(self->index, first, last,
                                          scratch, &start, &stop, &err)
                       : how == 'p' ? bags_index_find_prefix(self->index, first,
                                          scratch, &start, &stop, &err)
                                    : bags_index_find(self->index, first, scratch,
                                          &start, &stop, &err));
    if (!call_failed(state, code, &err, self->source->path))
        return index_points(self, row, start, stop);
    if (code == BAGS_ERROR_VALUE)
        place_error(false, "%S", self->source->path);
    return NULL;
}

static void index_dealloc(PyObject *self) {
    bags_index_close(((Index *)self)->index);
    Py_XDECREF((PyObject *)((Index *)self)->source);
    free_object(self);
}

static PyMethodDef index_methods[] = {
    {"_find", index_find, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyType_Slot index_slots[] = {{Py_tp_init, index_init},
    {Py_tp_dealloc, index_dealloc}, {Py_tp_methods, index_methods}, {0, NULL}};
PyType_Spec index_spec = {"bags._core.Index", sizeof(Index), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, index_slots};
