/* objects.c - errors, and code that readers and writers share. */
#include "core.h"

#include <pthread.h>
#include <structmember.h>
#include <time.h>

/* ---- objects ---- */

static unsigned forks;

static void count_fork(void) { forks++; }

bool watch_forks(void) {
    static bool watched; /* one per process, like this code */
    watched = watched || !pthread_atfork(NULL, NULL, count_fork);
    return watched;
}

unsigned this_process(void) { return forks; }

void *new_object(PyTypeObject *type) {
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyObject *no_pickle(PyObject *self, PyObject *unused) {
    (void)unused;
    PyErr_Format(PyExc_TypeError, "%R cannot be pickled; open one in each process",
        (PyObject *)Py_TYPE(self));
    return NULL;
}

/* ---- signals ---- */

#define PATIENCE 50000 /* microseconds */

bool signal_raised(void) {
    if (!PyGILState_GetThisThreadState()) /* a thread of C */
        return false;
    PyGILState_STATE gil = PyGILState_Ensure();
    bool raised = PyErr_Occurred() || PyErr_CheckSignals();
    PyGILState_Release(gil);
    return raised;
}

static double seconds_now(void) {
    struct timespec time;
    (void)clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static __thread double checked; /* when signal_raised_sometimes ran handlers */

bool signal_raised_sometimes(void) {
    double now = seconds_now();
    if (now - checked < PATIENCE * 1e-6)
        return false;
    checked = now;
    return signal_raised();
}

/* ---- progress ---- */

/* Call the user's function. The caller holds the GIL. */
static bool progress_call(Progress *progress, uint64_t done, uint64_t total) {
    progress->called = progress->call != Py_None;
    progress->done = done;
    if (!progress->called)
        return true;
    OWNED PyObject *result = PyObject_CallFunction(
        progress->call, "KK", (unsigned long long)done, (unsigned long long)total);
    return result != NULL;
}

bool progress_step(void *user, uint64_t done, uint64_t total) {
    Progress *progress = (Progress *)user;
    bool foreign = !PyGILState_GetThisThreadState(); /* a thread of C */
    PyGILState_STATE gil = PyGILState_Ensure();
    double now = seconds_now();
    progress->total = total;
    if (!progress->failed && now - progress->last >= PATIENCE * 1e-6) {
        progress->last = now;
        bool failed = PyErr_Occurred() || PyErr_CheckSignals() ||
                      !progress_call(progress, done, total);
        __atomic_store_n(&progress->failed, failed, __ATOMIC_RELAXED);
        checked = 0; /* hooks called by this thread notice the exception at once */
        if (progress->failed && foreign)
            PyErr_Fetch(&progress->error[0], &progress->error[1], &progress->error[2]);
    }
    bool good = !progress->failed;
    PyGILState_Release(gil);
    return good;
}

void progress_note(void *user, uint64_t done, uint64_t total) {
    (void)progress_step(user, done, total);
}

bool progress_end(Progress *progress, bool good) {
    if (progress->error[0])
        PyErr_Restore(progress->error[0], progress->error[1], progress->error[2]);
    if (good && !PyErr_Occurred() &&
        (!progress->called || progress->done != progress->total))
        (void)progress_call(progress, progress->total, progress->total);
    return !PyErr_Occurred();
}

bool lock_or_signal(PyThread_type_lock lock) {
    PyLockStatus status = PyThread_acquire_lock_timed(lock, 0, 0);
    while (status != PY_LOCK_ACQUIRED) {
        WITHOUT_GIL(status = PyThread_acquire_lock_timed(lock, PATIENCE, 1));
        if (status != PY_LOCK_ACQUIRED && PyErr_CheckSignals())
            return false;
    }
    return true;
}

/* ---- errors ---- */

size_t text_in_message(const char *message, const char *path) {
    const char *shown = path ? bags_path_tail(path) : "";
    size_t size = strlen(shown);
    return strncmp(message, shown, size) == 0 ? size : 0;
}

size_t path_in_message(const char *message, PyObject *path) {
    OWNED PyObject *name = NULL;
    if (path && !PyUnicode_FSConverter(path, &name))
        PyErr_Clear();
    return name ? text_in_message(message, PyBytes_AsString(name)) : 0;
}

/* Names in C, and the corresponding names in Python. */
static const char *const words[][2] = {{"bags_recover", "bags.recover"},
    {"bags_checksum", "bags.checksum"}, {"bags_finalize", "bags.finalize"},
    {"bags_reader_length", "len of a reader"}, {"--from KIND", "from_="},
    {"--from", "from_"}, {"use `bags copy` or `bags pack`", "bags.copy copies it"},
    {"set BAGS_EXISTING_RESUME", "set existing='resume'"},
    {"set BAGS_EXISTING_APPEND", "set existing='append'"},
    {"bags_reader_get_range", "reader.values"},
    {"set whole to write all of them",
        "whole=True writes all of them, compact=True none of them"},
    {"in_order", "shuffle=False"}, {"selections", "rows"},
    {"BAGS_CROP_CENTER", "'center'"}, {"BAGS_CROP_RANDOM", "'random'"},
    {"BAGS_FILTER_NEAREST", "filter 'nearest'"},
    {"dims, at most 6, shape", "shape, of at most 6 numbers,"},
    {"dims and width", "shape and width"},
    {"set the option `blobs` of bags_zstd_options",
        "only utf8, bytes, msgpack and tree have one"}};

/* Write --type 'NAME=TYPE' as type={'NAME': 'TYPE'}. Returns its size; 0 for other
 * text. */
static size_t type_option(const char *message, char *out, size_t size) {
    static const char begin[] = "--type '";
    const char *name = message + sizeof begin - 1;
    if (strncmp(message, begin, sizeof begin - 1))
        return 0;
    const char *type = strchr(name, '='), *end = type ? strchr(type, '\'') : NULL;
    if (!end)
        return 0;
    (void)snprintf(out, size, "type={'%.*s': '%.*s'}", (int)(type - name), name,
        (int)(end - type - 1), type + 1);
    return (size_t)(end + 1 - message);
}

void message_of_python(
    const char *message, size_t path_size, char out[BAGS_ERROR_SIZE]) {
    const char *text = message + path_size;
    size_t used = 0;
    while (*message && used + 1 < BAGS_ERROR_SIZE) {
        size_t size = 0;
        bool starts = message >= text && (message == text || strchr(" (", message[-1]));
        for (size_t i = 0; starts && !size && i < sizeof words / sizeof *words; i++) {
            size_t length = strlen(words[i][0]);
            if (strncmp(message, words[i][0], length) != 0 ||
                (message[length] && !strchr(" ,;.)", message[length])))
                continue;
            (void)snprintf(out + used, BAGS_ERROR_SIZE - used, "%s", words[i][1]);
            size = length;
        }
        if (!size && starts)
            size = type_option(message, out + used, BAGS_ERROR_SIZE - used);
        if (size)
            used += strlen(out + used);
        else if (starts && !strncmp(message, "--", 2)) {
            /* An option of the command. Arguments have the same names. */
            for (size = 2; strchr("-abcdefghijklmnopqrstuvwxyz", message[size]) &&
                           message[size] && used + 1 < BAGS_ERROR_SIZE;
                 size++)
                out[used++] = message[size] == '-' ? '_' : message[size];
        }
        if (!size)
            out[used++] = *message;
        message += size + !size;
    }
    out[used] = 0;
}

PyObject *raise_error(State *state, const bags_error *err, PyObject *path) {
    return raise_error_at(state, err, path, path_in_message(err->message, path));
}

PyObject *raise_error_of(State *state, const bags_error *err, const char *path) {
    OWNED PyObject *shown = PyUnicode_DecodeFSDefault(path);
    return shown ? raise_error(state, err, shown) : NULL;
}

PyObject *raise_error_at(
    State *state, const bags_error *err, PyObject *path, size_t path_size) {
    static const struct {
        bags_code code;
        int system; /* errno for an OSError; determines its class */
        PyObject **type;
    } kinds[] = {{BAGS_ERROR_MISSING, ENOENT, NULL}, {BAGS_ERROR_EXISTS, EEXIST, NULL},
        {BAGS_ERROR_LOCKED, EWOULDBLOCK, NULL}, {BAGS_ERROR_IO, EIO, NULL},
        {BAGS_ERROR_RANGE, 0, &PyExc_IndexError},
        {BAGS_ERROR_FIELD, 0, &PyExc_KeyError}, {BAGS_ERROR_TYPE, 0, &PyExc_TypeError},
        {BAGS_ERROR_MEMORY, 0, &PyExc_MemoryError},
        {BAGS_ERROR_LIMIT, 0, &PyExc_OverflowError},
        {BAGS_ERROR_STATE, 0, &PyExc_RuntimeError},
        {BAGS_ERROR_CHANGED, 0, &PyExc_RuntimeError}};
    PyObject *type = err->code == BAGS_ERROR_CORRUPT ||
                             err->code == BAGS_ERROR_UNFINISHED ||
                             err->code == BAGS_ERROR_GAP
                         ? state->data_error
                         : PyExc_ValueError;
    int system = 0;
    if (PyErr_Occurred()) /* raised by a hook written in Python */
        return NULL;
    char message[BAGS_ERROR_SIZE];
    message_of_python(err->message, path_size, message);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (kinds[i].code == err->code) {
            type = kinds[i].type ? *kinds[i].type : PyExc_OSError;
            system = kinds[i].system && err->system ? err->system : kinds[i].system;
        }
    }
    if (!system)
        return PyErr_SetString(type, message), NULL;
    /* An OSError appends the path itself. */
    size_t skip = path && !strncmp(message + path_size, ": ", 2) ? path_size + 2 : 0;
    OWNED PyObject *made = PyObject_CallFunction(
        type, "isO", system, message + skip, path ? path : Py_None);
    if (made)
        PyErr_SetObject((PyObject *)Py_TYPE(made), made);
    return NULL;
}

bool call_failed(State *state, bags_code code, const bags_error *err, PyObject *path) {
    if (code)
        raise_error(state, err, path);
    return PyErr_Occurred() != NULL;
}

void place_error(bool note, const char *format, ...) {
    PyObject *type, *value, *trace, *made = NULL;
    va_list list;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    va_start(list, format);
    OWNED PyObject *where = PyUnicode_FromFormatV(format, list);
    va_end(list);
    if (where && note) {
        Py_XDECREF(PyObject_CallMethod(value, "add_note", "O", where));
    } else if (where && (type == PyExc_TypeError || type == PyExc_ValueError ||
                            type == PyExc_KeyError)) {
        OWNED PyObject *args =
            PyObject_GetAttrString(value, "args"); /* str() would quote a key */
        PyObject *text = args && PyTuple_Size(args) ? PyTuple_GetItem(args, 0) : value;
        made = PyUnicode_FromFormat("%U: %S", where, text);
    }
    if (made) {
        SET(value, made);
        Py_CLEAR(trace);
    }
    PyErr_Restore(type, value, trace); /* replaces any exception raised here */
}

/* ---- sources and their rows ---- */

static void source_dealloc(PyObject *self) {
    Source *source = (Source *)self;
    bags_reader *reader = source->reader;
    bag_reader *bag = source->bag;
    storage_end(source->state, source->storage);
    free_row(source->spare);
    WITHOUT_GIL(bags_reader_close(reader); bag_reader_close(bag));
    if (source->memory.obj)
        PyBuffer_Release(&source->memory);
    Py_XDECREF(source->path);
    Py_XDECREF(source->storage); /* after everything that uses its hooks */
    free_object(self);
}

static PyType_Slot source_slots[] = {{Py_tp_dealloc, source_dealloc}, {0, NULL}};
PyType_Spec source_spec = {"bags._core.Source", sizeof(Source), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, source_slots};

Source *new_source(State *state, PyObject *path) {
    Source *source = (Source *)new_object(state->source);
    if (source) {
        source->state = state;
        source->path = Py_NewRef(path);
    }
    return source;
}

Source *open_source(State *state, PyObject *path, PyObject *storage, const bags_io **io,
    open_call open, const void *options) {
    Source *source = new_source(state, path);
    OWNED PyObject *name = NULL;
    bags_error err;
    bool good = false;
    *io = storage_io(state, storage, map_io());
    if (source && *io && PyUnicode_FSConverter(path, &name)) {
        const char *text = PyBytes_AsString(name);
        source->storage = Py_NewRef(storage);
        WITHOUT_GIL(good = open(source, text, options, &err));
        good = !call_failed(state, good ? BAGS_OK : err.code, &err, path);
    }
    if (!good)
        Py_CLEAR(source);
    return source;
}

uint64_t read_step(const Source *source, uint64_t count) {
    return source->storage != Py_None || count < 4096 ? count : 4096;
}

Row *take_row(Source *source) {
    Row *row = __atomic_exchange_n(&source->spare, NULL, __ATOMIC_ACQ_REL);
    if (!row && !(row = (Row *)calloc(1, sizeof *row)))
        PyErr_NoMemory();
    if (row)
        row->source = source;
    return row;
}

void give_row(Row **row) {
    if (*row)
        free_row(__atomic_exchange_n(&(*row)->source->spare, *row, __ATOMIC_ACQ_REL));
}

void row_clear(Row *row) {
    if (row->videos)
        load_far()->video_cache_close(row->videos);
    bags_row_free(&row->row);
    bags_buffer_free(&row->scratch);
}

void free_row(Row *row) {
    if (row)
        row_clear(row);
    free(row);
}

/* ---- objects that can be closed ---- */

int closed_error(PyObject *closable) {
    PyObject *path = ((Closable *)closable)->path;
    OWNED PyObject *name = PyType_GetName(Py_TYPE(closable));
    if (name && path)
        PyErr_Format(PyExc_ValueError, "%S: this %U is closed", path, name);
    else if (name)
        PyErr_Format(PyExc_ValueError, "this %U was not opened, or is closed", name);
    return -1;
}

bool begin_init(PyObject *self) {
    Closable *closable = (Closable *)self;
    if (closable->state)
        PyErr_SetString(PyExc_TypeError, "__init__ was called before");
    else
        closable->state = state_of(Py_TYPE(self));
    return !PyErr_Occurred();
}

bool take_fields(Closable *closable, PyObject *path, PyObject *list) {
    if (!PyList_Check(list))
        return PyErr_SetString(PyExc_TypeError, "a list of fields is required"), false;
    size_t count = (size_t)PyList_Size(list);
    closable->fields = (Field *)PyMem_Calloc(count + 1, sizeof *closable->fields);
    if (!closable->fields)
        return PyErr_NoMemory(), false;
    for (size_t i = 0; i < count; i++) {
        const char *name, *type;
        PyObject *codec;
        if (!PyArg_Parse(
                PyList_GetItem(list, (Py_ssize_t)i), "(ssO)", &name, &type, &codec))
            return place_error(false, "%S", path), false;
        closable->count++;
        if (field_init(closable->state, &closable->fields[i], name, type, codec))
            return place_error(false, "%S: field \"%s\"", path, name), false;
    }
    return true;
}

static PyMemberDef closable_members[] = {
    {"path", T_OBJECT, offsetof(Closable, path), READONLY,
        "The path with which it was opened."},
    {0}};

static int closable_traverse(PyObject *self, visitproc visit, void *arg) {
    Closable *closable = (Closable *)self;
    Py_VISIT(Py_TYPE(self));
    for (size_t i = 0; i < closable->count; i++)
        Py_VISIT(closable->fields[i].given);
    return 0;
}

static int closable_clear(PyObject *self) {
    Closable *closable = (Closable *)self;
    for (size_t i = 0; i < closable->count; i++)
        Py_CLEAR(closable->fields[i].given);
    return 0;
}

static void closable_free(PyObject *self) {
    Closable *closable = (Closable *)self;
    for (size_t i = 0; i < closable->count; i++)
        field_clear(&closable->fields[i]);
    PyMem_Free(closable->fields);
    Py_XDECREF(closable->path);
    free_object(self);
}

/* ---- readers ---- */

Source *source_of(PyObject *self) {
    Source *source = ((Opened *)self)->source;
    if (!source)
        return closed_error(self), NULL;
    if (source->storage && storage_waits(source->storage)) {
        PyErr_Format(PyExc_RuntimeError,
            "%S: a handler of a signal cannot use the reader that it interrupted",
            source->path);
        return NULL;
    }
    return (Source *)Py_NewRef((PyObject *)source);
}

bool take_index(Source *source, PyObject *object, uint64_t *index) {
    const char *what = source->bag ? "blob" : "datapoint";
    Py_ssize_t i = PyNumber_AsSsize_t(object, NULL); /* clamped */
    if (i == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError,
                "%S: the index of a %s must be an int, a slice or a range, not %R",
                source->path, what, (PyObject *)Py_TYPE(object));
        return false;
    }
    Py_ssize_t length = (Py_ssize_t)(source->bag ? bag_reader_length(source->bag)
                                                 : bags_reader_length(source->reader));
    *index = (uint64_t)(i < 0 ? i + length : i);
    if (*index < (uint64_t)length)
        return true;
    PyErr_Format(PyExc_IndexError, "%S: %s index %S out of range (length %zd)",
        source->path, what, object, length);
    return false;
}

static Py_ssize_t opened_len(PyObject *self) {
    const Source *source = ((Opened *)self)->source;
    if (!source)
        return closed_error(self);
    return (Py_ssize_t)(source->bag ? bag_reader_length(source->bag)
                                    : bags_reader_length(source->reader));
}

static PyObject *opened_close(PyObject *self, PyObject *unused) {
    (void)unused;
    Py_CLEAR(((Opened *)self)->source);
    Py_RETURN_NONE;
}

static PyObject *opened_closed(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(!((Opened *)self)->source);
}

static int opened_clear(PyObject *self) {
    Py_CLEAR(((Opened *)self)->source);
    return closable_clear(self);
}

static void opened_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    Py_CLEAR(((Opened *)self)->source);
    closable_free(self);
}

static PyMethodDef opened_methods[] = {
    {"close", opened_close, METH_NOARGS,
        "close()\n--\n\n"
        "Close it. Views and arrays stay valid; files are released with the\n"
        "last."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef opened_gets[] = {
    {"closed", opened_closed, NULL, "True after close().", NULL}, {0}};
static PyType_Slot opened_slots[] = {{Py_tp_dealloc, opened_dealloc},
    {Py_tp_traverse, closable_traverse}, {Py_tp_clear, opened_clear},
    {Py_tp_members, closable_members}, {Py_tp_methods, opened_methods},
    {Py_tp_getset, opened_gets}, {Py_mp_length, opened_len}, {Py_sq_length, opened_len},
    {0, NULL}};
PyType_Spec opened_spec = {"bags._core.Reader", sizeof(Opened), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, opened_slots};

/* ---- writers ---- */

bool begin_writer(Written *writer, PyObject *path) {
    writer->lock = PyThread_allocate_lock();
    if (!writer->lock)
        return PyErr_NoMemory(), false;
    writer->base.path = Py_NewRef(path);
    writer->process = forks;
    return true;
}

/* Lock a writer while holding the GIL. Waiting releases the GIL, because the thread
 * with the lock may be waiting for it. False in the child of a fork, where the lock
 * might never be released. */
static bool lock_writer(Written *writer) {
    if (!writer->lock || writer->process != forks)
        return false;
    if (!PyThread_acquire_lock(writer->lock, NOWAIT_LOCK))
        WITHOUT_GIL(PyThread_acquire_lock(writer->lock, WAIT_LOCK));
    return true;
}

bool call_writer(PyObject *self, writer_call call, void *data) {
    Written *writer = (Written *)self;
    bool open = (writer->bag || writer->dataset), locked = open && lock_writer(writer);
    bags_code code = BAGS_OK;
    bags_error err;
    if (open && !locked) {
        PyErr_Format(PyExc_RuntimeError,
            "%S: its writer belongs to the process that opened it, not to a child made "
            "by fork()",
            writer->base.path);
        return false;
    }
    open = writer->bag || writer->dataset;
    if (open)
        WITHOUT_GIL(code = call(writer, data, &err));
    if (code) { /* the error is raised here, so close need not return it again */
        bag_writer_clear(writer->bag);
        bags_writer_clear(writer->dataset);
    }
    if (locked)
        PyThread_release_lock(writer->lock);
    if (!open)
        closed_error(self);
    else if (code)
        raise_error(writer->base.state, &err, writer->base.path);
    return open && !code;
}

static bags_code flush_writer(Written *writer, void *unused, bags_error *err) {
    (void)unused;
    return writer->bag ? bag_writer_flush(writer->bag, err)
                       : bags_writer_flush(writer->dataset, err);
}

static PyObject *written_flush(PyObject *self, PyObject *unused) {
    (void)unused;
    return call_writer(self, flush_writer, NULL) ? Py_NewRef(Py_None) : NULL;
}

/* Call with the lock held. */
static void count_written(Written *writer) {
    if (writer->bag) {
        writer->length = bag_writer_length(writer->bag);
        writer->size = bag_writer_size(writer->bag);
    } else if (writer->dataset) {
        writer->length = bags_writer_length(writer->dataset);
        writer->size = bags_writer_size(writer->dataset);
    }
}

static PyObject *written_close(PyObject *self, PyObject *unused) {
    Written *writer = (Written *)self;
    bags_code code = BAGS_OK;
    bags_error err;
    (void)unused;
    if (lock_writer(writer)) {
        bag_writer *bag = writer->bag;
        bags_writer *dataset = writer->dataset;
        count_written(writer);
        writer->bag = NULL;
        writer->dataset = NULL;
        WITHOUT_GIL(code = bag ? bag_writer_close(bag, &err)
                               : bags_writer_close(dataset, &err));
        PyThread_release_lock(writer->lock);
    }
    return code ? raise_error(writer->base.state, &err, writer->base.path)
                : Py_NewRef(Py_None);
}

uint64_t written_number(Written *writer, char which) {
    bool locked = lock_writer(writer);
    if (locked)
        count_written(writer);
    uint64_t number = which == 'l'   ? writer->length
                      : which == 's' ? writer->size
                      : which == 'r' ? writer->resumed
                                     : writer->shards + writer->running;
    if (locked)
        PyThread_release_lock(writer->lock);
    return number;
}

static Py_ssize_t written_len(PyObject *self) {
    return (Py_ssize_t)written_number((Written *)self, 'l');
}

PyObject *written_get(PyObject *self, void *which) {
    return PyLong_FromUnsignedLongLong(
        written_number((Written *)self, *(const char *)which));
}

static PyObject *written_closed(PyObject *self, void *unused) {
    (void)unused;
    return PyBool_FromLong(!((Written *)self)->bag && !((Written *)self)->dataset);
}

static void written_dealloc(PyObject *self) {
    Written *writer = (Written *)self;
    PyObject_GC_UnTrack(self);
    bag_writer_close(writer->bag, NULL);
    bags_writer_close(writer->dataset, NULL);
    if (writer->lock)
        PyThread_free_lock(writer->lock);
    if (writer->spare)
        arena_free(writer->spare);
    PyMem_Free(writer->spare);
    closable_free(self);
}

static PyMethodDef written_methods[] = {
    {"flush", written_flush, METH_NOARGS,
        "flush()\n--\n\n"
        "Pass all data to the system: it survives the end of this process."},
    {"close", written_close, METH_NOARGS,
        "close()\n--\n\nFinish it. Closing it again does nothing."},
    {"__reduce__", no_pickle, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyGetSetDef written_gets[] = {
    {"size", written_get, NULL, "Bytes that its Bags have when it is closed.", "s"},
    {"closed", written_closed, NULL, "True after close().", NULL}, {0}};
static PyType_Slot written_slots[] = {{Py_tp_dealloc, written_dealloc},
    {Py_tp_traverse, closable_traverse}, {Py_tp_clear, closable_clear},
    {Py_tp_members, closable_members}, {Py_tp_methods, written_methods},
    {Py_tp_getset, written_gets}, {Py_sq_length, written_len}, {0, NULL}};
PyType_Spec written_spec = {"bags._core.Writer", sizeof(Written), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, written_slots};
