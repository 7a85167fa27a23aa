/* storage.c - hooks for datasets that are not directories: archives, servers, and
 * Python file systems (fsspec). bags/storage.py decides which of them a path needs. */
#include "core.h"

typedef struct Storage {
    PyObject_HEAD bags_io io; /* the hooks that readers use */
    bags_io below;            /* the hooks that the archive is read with */
    bags_archive *archive;
    bags_http *http;
    bags_cache *cache;
    bool ending;   /* reading ahead is pointless from now on */
    PyObject *fs;  /* a bags.storage.FileSystem */
    char why[256]; /* the last exception raised by it */
} Storage;

static const Far *storage_far; /* set once a server is open */

/* The storage that this thread is waiting for while signal handlers run. */
static __thread const PyObject *waiting;

bool storage_waits(const PyObject *storage) { return storage == waiting; }

void storage_end(State *state, PyObject *storage) {
    if (storage && PyObject_TypeCheck(storage, state->storage))
        ((Storage *)storage)->ending = true;
}

/* Called by threads that are waiting for a server. */
static bool storage_interrupted(void *user) {
    Storage *storage = (Storage *)user;
    const PyObject *before = waiting;
    if (bags_loader_is_stopping() || storage->ending)
        return true;
    waiting = (PyObject *)storage;
    bool raised = signal_raised();
    waiting = before;
    return raised;
}

static void storage_dealloc(PyObject *self) {
    Storage *storage = (Storage *)self;
    WITHOUT_GIL(bags_archive_close(storage->archive));
    bags_cache_close(storage->cache); /* before the hooks that it uses */
    if (storage->http)
        WITHOUT_GIL(load_far()->http_close(storage->http));
    Py_XDECREF(storage->fs);
    free_object(self);
}

/* ---- hooks for a Python file system; they are called without the GIL ---- */

/* An open file: its path, and its identity when it was opened. Python file systems read
 * by path, so the identity is compared after every read. */
typedef struct PythonFile {
    bags_identity identity;
    char path[];
} PythonFile;

/* Call a method of a bags.storage.FileSystem. It returns (0, result) or (errno,
 * exception); in the second case, this returns NULL and sets *error. The caller holds
 * the GIL. */
static PyObject *fs_call(Storage *storage, int *error, const char *format, ...) {
    va_list list;
    *error = EINTR;
    if (PyErr_Occurred()) /* a signal handler raised an exception earlier */
        return NULL;
    va_start(list, format);
    PyObject *args = Py_VaBuildValue(format, list), *out = NULL;
    va_end(list);
    PyObject *answer = args ? PyObject_CallObject(storage->fs, args) : NULL;
    if (!answer && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) {
        Py_XDECREF(args); /* such as KeyboardInterrupt; the C call will raise it */
        return NULL;
    }
    *error = EIO;
    if (answer && PyArg_ParseTuple(answer, "iO", error, &out) && *error) {
        const char *why = PyUnicode_AsUTF8AndSize(out, NULL);
        snprintf(storage->why, sizeof storage->why, "%.200s", why ? why : "");
        out = NULL;
    }
    PyErr_Clear();
    Py_XINCREF(out);
    Py_XDECREF(args);
    Py_XDECREF(answer);
    return out;
}

/* `fresh`: bypass the file system's cache. */
static int fs_info(Storage *storage, const char *path, bool fresh,
    bags_identity *identity, bags_path_kind *kind) {
    unsigned long long size, version;
    int error, file;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *info = fs_call(storage, &error, "(ssi)", "info", path, fresh);
    memset(identity, 0, sizeof *identity);
    if (info && PyArg_ParseTuple(info, "pKK", &file, &size, &version)) {
        *kind = file ? BAGS_PATH_FILE : BAGS_PATH_DIRECTORY;
        identity->size = size;
        identity->inode = version;
    }
    Py_XDECREF(info);
    PyGILState_Release(gil);
    return error;
}

static int fs_open(void *user, const char *path, int mode, void **file) {
    bags_identity identity;
    bags_path_kind kind = BAGS_PATH_NONE;
    if (mode != BAGS_IO_READ)
        return EROFS;
    int error = fs_info((Storage *)user, path, true, &identity, &kind);
    if (error)
        return error;
    if (kind != BAGS_PATH_FILE)
        return EISDIR;
    PythonFile *made = (PythonFile *)malloc(sizeof *made + strlen(path) + 1);
    if (!made)
        return ENOMEM;
    made->identity = identity;
    strcpy(made->path, path);
    *file = made;
    return 0;
}

static int fs_close(void *user, void *file) {
    (void)user;
    free(file);
    return 0;
}

static int fs_size(void *user, void *file, uint64_t *size) {
    (void)user;
    *size = ((PythonFile *)file)->identity.size;
    return 0;
}

static int fs_identify(
    void *user, void *file, const char *path, bags_identity *identity) {
    bags_path_kind kind;
    if (!file)
        return fs_info((Storage *)user, path, true, identity, &kind);
    *identity = ((PythonFile *)file)->identity;
    return 0;
}

static int fs_read_at(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    const PythonFile *from = (const PythonFile *)file;
    char *bytes;
    Py_ssize_t got;
    int error;
    *done = 0;
    if (offset >= from->identity.size)
        return 0;
    if (size > from->identity.size - offset)
        size = (size_t)(from->identity.size - offset);
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *out = fs_call((Storage *)user, &error, "(ssKKKK)", "read", from->path,
        (unsigned long long)offset, (unsigned long long)(offset + size),
        (unsigned long long)from->identity.size,
        (unsigned long long)from->identity.inode);
    if (out && !PyBytes_AsStringAndSize(out, &bytes, &got)) {
        *done = (size_t)got < size ? (size_t)got : size;
        memcpy(data, bytes, *done);
    }
    Py_XDECREF(out);
    PyGILState_Release(gil);
    return error;
}

static int fs_kind(void *user, const char *path, bags_path_kind *kind) {
    bags_identity identity;
    int error = fs_info((Storage *)user, path, false, &identity, kind);
    if (error == ENOENT)
        *kind = BAGS_PATH_NONE;
    return error == ENOENT ? 0 : error;
}

static int fs_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    int error;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *names = fs_call((Storage *)user, &error, "(ss)", "list", path);
    for (Py_ssize_t i = 0; names && !error && i < PyList_Size(names); i++) {
        const char *name = PyUnicode_AsUTF8AndSize(PyList_GetItem(names, i), NULL);
        error = name ? each(each_user, name) : EILSEQ;
        if (!name)
            PyErr_Clear();
    }
    Py_XDECREF(names);
    PyGILState_Release(gil);
    return error;
}

static void fs_explain(
    void *user, const char *path, int error, char *text, size_t size) {
    (void)path;
    snprintf(text, size, "%s", error == ENOENT ? "" : ((Storage *)user)->why);
}

/* ---- choosing the storage of a path ---- */

static bool open_fs(Storage *storage, PyObject *fs) {
    memset(&storage->io, 0, sizeof storage->io);
    storage->fs = Py_NewRef(fs);
    storage->io.user = storage;
    storage->io.open = fs_open;
    storage->io.close = fs_close;
    storage->io.size = fs_size;
    storage->io.read_at = fs_read_at;
    storage->io.kind = fs_kind;
    storage->io.list = fs_list;
    storage->io.identify = fs_identify;
    storage->io.explain = fs_explain;
    return true;
}

/* `texts` has the options for a server and for its cache. */
static bool open_http(State *state, Storage *storage, PyObject *texts) {
    bags_http_options options;
    bags_cache_options keep;
    const char *cache;
    unsigned long long cache_size, part_size;
    int read_ahead, catalogues;
    const Far *far = load_far();
    bags_error err;
    memset(&options, 0, sizeof options);
    memset(&keep, 0, sizeof keep);
    if (!far)
        return false;
    if (!far->http_open)
        return PyErr_SetString(PyExc_ValueError, "this build has no http"), false;
    if (!PyArg_Parse(texts, "(zzzzzzzzzKKpp)", &options.query, &options.user,
            &options.key, &options.secret, &options.token, &options.region,
            &options.endpoint, &options.ca_file, &cache, &cache_size, &part_size,
            &read_ahead, &catalogues))
        return false;
    options.part_size = part_size;
    options.no_read_ahead = !read_ahead;
    options.no_catalogue = !catalogues;
    if (cache) {
        keep.size = cache_size;
        keep.interrupted = storage_interrupted;
        keep.interrupted_user = storage;
        storage->cache = bags_cache_open(cache, &keep, &err);
        if (!storage->cache)
            return raise_error(state, &err, NULL), false;
        options.recall = bags_cache_recall;
        options.remember = bags_cache_remember;
        options.cache = storage->cache;
    }
    options.interrupted = storage_interrupted;
    options.interrupted_user = storage;
    storage_far = far;
    storage->http = far->http_open(&options, &err);
    if (!storage->http)
        return raise_error(state, &err, NULL), false;
    const bags_io *io = far->http_io(storage->http);
    if (cache)
        io = bags_cache_io(storage->cache, io, &err);
    if (!io)
        return raise_error(state, &err, NULL), false;
    storage->io = *io;
    return true;
}

static bool open_archive(State *state, Storage *storage, PyObject *path) {
    bags_archive_options with;
    bags_error err;
    OWNED PyObject *name = NULL;
    if (!PyUnicode_FSConverter(path, &name))
        return false;
    memset(&with, 0, sizeof with);
    storage->below = storage->io;
    with.env.io = &storage->below;
    const char *text = PyBytes_AsString(name);
    WITHOUT_GIL(storage->archive = bags_archive_open(text, &with, &err));
    if (call_failed(state, storage->archive ? BAGS_OK : err.code, &err, path))
        return false;
    storage->io = *bags_archive_io(storage->archive);
    return true;
}

static bags_code objects_upload(void *user, const char *url, const bags_io *io,
    const char *path, void (*progress)(void *progress_user, uint64_t bytes),
    void *progress_user, bags_error *err) {
    return storage_far->http_upload(
        ((Storage *)user)->http, url, io, path, progress, progress_user, err);
}

static bags_code objects_same(void *user, const char *url, const bags_io *io,
    const char *path, bool *same, bags_error *err) {
    return storage_far->http_same(((Storage *)user)->http, url, io, path, same, err);
}

bool storage_objects(State *state, PyObject *storage, bags_copy_objects *out) {
    out->user = storage;
    out->upload = objects_upload;
    out->same = objects_same;
    return PyObject_TypeCheck(storage, state->storage) && ((Storage *)storage)->http;
}

/* _core.Storage(fs, texts, archive, tool): a bags.storage.FileSystem, the texts for
 * open_http, and the path of an archive; each may be None. For tool, see tool_io. */
static int storage_init(PyObject *self, PyObject *args, PyObject *unused) {
    Storage *storage = (Storage *)self;
    State *state = state_of(Py_TYPE(self));
    PyObject *fs, *texts, *archive;
    (void)unused;
    int tool;
    if (!PyArg_ParseTuple(args, "OOOp", &fs, &texts, &archive, &tool))
        return -1;
    if (storage->io.open)
        return PyErr_SetString(PyExc_TypeError, "__init__ was called before"), -1;
    storage->io = tool ? *tool_io() : *map_io();
    return (fs == Py_None || open_fs(storage, fs)) &&
                   (texts == Py_None || open_http(state, storage, texts)) &&
                   (archive == Py_None || open_archive(state, storage, archive))
               ? 0
               : -1;
}

static PyType_Slot storage_slots[] = {
    {Py_tp_init, storage_init}, {Py_tp_dealloc, storage_dealloc}, {0, NULL}};
PyType_Spec storage_spec = {
    "bags._core.Storage", sizeof(Storage), 0, Py_TPFLAGS_DEFAULT, storage_slots};

const bags_io *storage_io(State *state, PyObject *storage, const bags_io *local) {
    if (storage == Py_None)
        return local;
    if (PyObject_TypeCheck(storage, state->storage) && ((Storage *)storage)->io.open)
        return &((Storage *)storage)->io;
    PyErr_SetString(PyExc_TypeError, "storage: a _core.Storage is required");
    return NULL;
}
