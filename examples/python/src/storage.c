/* storage.c - datasets that are no directories: archives, servers, and file systems of
 * Python (fsspec) as hooks. */
#include "core.h"

#include <sys/stat.h>

typedef struct Storage {
    PyObject_HEAD bags_io io; /* what readers use */
    bags_archive *archive;
    bags_http *http;
    bags_cache *cache;
    PyObject *fs;  /* a bags.storage.FileSystem */
    char why[256]; /* the last exception of it */
} Storage;

static void storage_dealloc(PyObject *self) {
    Storage *storage = (Storage *)self;
    WITHOUT_GIL(bags_archive_close(storage->archive));
    bags_cache_close(storage->cache); /* before the hooks below it */
    if (storage->http)
        WITHOUT_GIL(load_far()->http_close(storage->http));
    Py_XDECREF(storage->fs);
    free_object(self);
}

static PyType_Slot storage_slots[] = {{Py_tp_dealloc, storage_dealloc}, {0, NULL}};
static PyType_Spec storage_spec = {"bags._core.Storage", sizeof(Storage), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, storage_slots};

int add_storage(PyObject *module, State *state) {
    state->storage = add_type(module, &storage_spec, NULL, false);
    return state->storage ? 0 : -1;
}

const bags_io *storage_io(PyObject *storage) { return &((Storage *)storage)->io; }

/* ---- hooks on a file system of Python; they run without the GIL ---- */

/* An open file: its path, and what it was when it was opened. File systems of Python
 * read by path, so that this is compared after every read. */
typedef struct PythonFile {
    bags_identity identity;
    char path[];
} PythonFile;

/* errno of the exception that is raised, which is kept as text. */
static int exception_number(Storage *storage) {
    PyObject *type, *value, *trace;
    int error = EIO;
    if (PyErr_ExceptionMatches(PyExc_FileNotFoundError) ||
        PyErr_ExceptionMatches(PyExc_NotADirectoryError))
        error = ENOENT;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *number = value ? PyObject_GetAttrString(value, "errno") : NULL;
    if (number && PyLong_Check(number) && PyLong_AsLong(number) > 0)
        error = (int)PyLong_AsLong(number);
    PyObject *text = value ? PyObject_Repr(value) : NULL;
    const char *why = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    snprintf(storage->why, sizeof storage->why, "%.200s", why ? why : "");
    Py_XDECREF(number);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    PyErr_Clear();
    return error;
}

/* Call a method of bags.storage.FileSystem; NULL, and *error, if it raised. With the GIL. */
static PyObject *fs_call(
    Storage *storage, int *error, const char *method, const char *format, ...) {
    PyObject *function = PyObject_GetAttrString(storage->fs, method), *out = NULL;
    va_list list;
    va_start(list, format);
    PyObject *args = function ? Py_VaBuildValue(format, list) : NULL;
    va_end(list);
    if (args)
        out = PyObject_CallObject(function, args);
    Py_XDECREF(function);
    Py_XDECREF(args);
    *error = out ? 0 : exception_number(storage);
    return out;
}

/* fresh: not what the file system remembers. */
static int fs_info(Storage *storage, const char *path, bool fresh,
    bags_identity *identity, bags_path_kind *kind) {
    unsigned long long size, version;
    int error, file;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *info = fs_call(storage, &error, "info", "(si)", path, fresh);
    memset(identity, 0, sizeof *identity);
    if (info && PyArg_ParseTuple(info, "pKK", &file, &size, &version)) {
        *kind = file ? BAGS_PATH_FILE : BAGS_PATH_DIRECTORY;
        identity->size = size;
        identity->inode = version;
    } else if (info) {
        error = exception_number(storage);
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
    Storage *storage = (Storage *)user;
    const PythonFile *from = (const PythonFile *)file;
    bags_identity now;
    int error = 0;
    *done = 0;
    if (offset >= from->identity.size)
        return 0;
    if (size > from->identity.size - offset)
        size = (size_t)(from->identity.size - offset);
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *bytes = fs_call(storage, &error, "read", "(sKK)", from->path,
        (unsigned long long)offset, (unsigned long long)(offset + size));
    Py_buffer view;
    if (bytes && PyObject_GetBuffer(bytes, &view, PyBUF_SIMPLE)) {
        error = exception_number(storage);
    } else if (bytes) {
        *done = (size_t)view.len < size ? (size_t)view.len : size;
        memcpy(data, view.buf, *done);
        PyBuffer_Release(&view);
    }
    Py_XDECREF(bytes);
    PyGILState_Release(gil);
    if (!error)
        error = fs_identify(storage, NULL, from->path, &now);
    if (!error &&
        (now.size != from->identity.size || now.inode != from->identity.inode)) {
        snprintf(storage->why, sizeof storage->why, "another version replaced it");
        error = ESTALE;
    }
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
    PyObject *names = fs_call((Storage *)user, &error, "list", "(s)", path);
    for (Py_ssize_t i = 0; names && !error && i < PyList_Size(names); i++) {
        const char *name = PyUnicode_AsUTF8AndSize(PyList_GetItem(names, i), NULL);
        error = name ? each(each_user, name) : exception_number((Storage *)user);
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

static bool fs_hooks(Storage *storage, PyObject *fs) {
    PyObject *module = PyImport_ImportModule("bags.storage");
    storage->fs = module ? PyObject_CallMethod(module, "FileSystem", "O", fs) : NULL;
    Py_XDECREF(module);
    memset(&storage->io, 0, sizeof storage->io);
    storage->io.user = storage;
    storage->io.open = fs_open;
    storage->io.close = fs_close;
    storage->io.size = fs_size;
    storage->io.read_at = fs_read_at;
    storage->io.kind = fs_kind;
    storage->io.list = fs_list;
    storage->io.identify = fs_identify;
    storage->io.explain = fs_explain;
    return storage->fs != NULL;
}

/* ---- which storage a path needs ---- */

/* The length of the archive in a path: pets.zip in pets.zip/train; 0: none. */
static size_t archive_length(const char *path) {
    for (const char *at = path; *at; at++) {
        struct stat is;
        if (strncmp(at, ".zip", 4) != 0 && strncmp(at, ".tar", 4) != 0)
            continue;
        if (at[4] != 0 && at[4] != '/')
            continue;
        char *name = strndup(path, (size_t)(at - path) + 4);
        bool file = name && (strstr(name, "://") ||
                                (stat(name, &is) == 0 && S_ISREG(is.st_mode)));
        free(name);
        if (file)
            return (size_t)(at - path) + 4;
    }
    return 0;
}

/* The options of a server, and of the cache for it. */
typedef struct Server {
    bags_http_options http;
    bags_cache_options keep;
    const char *cache;
} Server;

#define HTTP(name)                                                                     \
    { #name, NULL, 's', offsetof(Server, http.name) }
static const Option server_options[] = {HTTP(query), HTTP(user), HTTP(key),
    HTTP(secret), HTTP(token), HTTP(region), HTTP(endpoint), HTTP(ca_file),
    OPTION('s', Server, cache), {"cache_size", NULL, 'U', offsetof(Server, keep.size)},
    {0}};

static bool open_http(State *state, Storage *storage, PyObject *dict) {
    Server server;
    const Far *far = load_far();
    bags_error err;
    memset(&server, 0, sizeof server);
    if (!far || !far->http_open) {
        if (!PyErr_Occurred())
            PyErr_SetString(
                PyExc_ValueError, "this build has no http: libcurl was missing");
        return false;
    }
    PyObject *where = PyUnicode_FromString("storage");
    bool good =
        where && set_options(server_options, &server, dict, where, NULL, NULL, NULL);
    Py_XDECREF(where);
    if (!good)
        return false;
    if (server.cache) {
        storage->cache = bags_cache_open(server.cache, &server.keep, &err);
        if (!storage->cache)
            return raise_error(state, &err, NULL), false;
        server.http.recall = bags_cache_recall;
        server.http.remember = bags_cache_remember;
        server.http.cache = storage->cache;
    }
    storage->http = far->http_open(&server.http, &err);
    if (!storage->http)
        return PyErr_SetString(PyExc_OSError, err.message), false;
    const bags_io *io = far->http_io(storage->http);
    if (server.cache)
        io = bags_cache_io(storage->cache, io, &err);
    if (!io)
        return raise_error(state, &err, NULL), false;
    storage->io = *io;
    return true;
}

/* The archive in a path, if there is one, on the hooks so far. */
static bool open_archive(State *state, Storage *storage, const char *path) {
    size_t length = archive_length(path);
    char *name = length ? strndup(path, length) : NULL;
    bags_io below = storage->io;
    bags_archive_options with;
    bags_error err;
    if (!length)
        return true;
    if (!name)
        return PyErr_NoMemory(), false;
    memset(&with, 0, sizeof with);
    with.env.io = &below;
    WITHOUT_GIL(storage->archive = bags_archive_open(name, &with, &err));
    free(name);
    if (storage->archive) {
        storage->io = *bags_archive_io(storage->archive);
        return true;
    }
    PyObject *shown = PyUnicode_FromString(path);
    raise_error(state, &err, shown);
    Py_XDECREF(shown);
    return false;
}

PyObject *open_storage(
    State *state, const char *path, PyObject *object, const bags_io **io) {
    Storage *storage = (Storage *)new_object(state->storage);
    bool options = object == Py_None || PyDict_Check(object), good = storage != NULL;
    if (good)
        storage->io = *map_io();
    if (good && !options)
        good = fs_hooks(storage, object);
    else if (good &&
             (strncmp(path, "http://", 7) == 0 || strncmp(path, "https://", 8) == 0 ||
                 strncmp(path, "s3://", 5) == 0))
        good = open_http(state, storage, object);
    else if (good && strstr(path, "://")) {
        PyErr_Format(PyExc_ValueError,
            "%s: unknown protocol (http, https and s3 are known); for others pass "
            "storage=fsspec.filesystem(...)",
            path);
        good = false;
    }
    if (good && options)
        good = open_archive(state, storage, path);
    if (good)
        *io = &storage->io;
    else
        Py_CLEAR(storage);
    return (PyObject *)storage;
}
