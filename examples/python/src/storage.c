/* storage.c - datasets that are no directories: archives, servers, and file systems of
 * Python (fsspec) as hooks. */
#include "core.h"

#include <sys/stat.h>

typedef struct Storage {
    PyObject_HEAD bags_io io; /* what readers use */
    bags_archive *archive;
    bags_http *http;
    bags_cache *cache;
    PyObject *fs;  /* of fsspec */
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

/* What tells two versions of a file apart: what is known of these, and the size. */
static uint64_t info_version(PyObject *info) {
    static const char *const names[] = {"ETag", "etag", "generation", "VersionId",
        "version_id", "mtime", "LastModified", "last_modified", "modified", "updated",
        "created", "ino"};
    uint64_t mix = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        PyObject *part = PyMapping_GetItemString(info, names[i]);
        PyObject *text = part ? PyObject_Str(part) : NULL;
        const char *at = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
        for (; at && *at; at++)
            mix = (mix ^ (unsigned char)*at) * UINT64_C(0x9E3779B97F4A7C15);
        PyErr_Clear(); /* there is no such key */
        Py_XDECREF(part);
        Py_XDECREF(text);
    }
    return mix;
}

/* fresh: not what the file system remembers. */
static int fs_info(Storage *storage, const char *path, bool fresh,
    bags_identity *identity, bags_path_kind *kind) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *done =
        fresh ? PyObject_CallMethod(storage->fs, "invalidate_cache", "s", path) : NULL;
    PyErr_Clear();
    PyObject *info = PyObject_CallMethod(storage->fs, "info", "s", path);
    PyObject *type = info ? PyMapping_GetItemString(info, "type") : NULL;
    const char *text = type ? PyUnicode_AsUTF8AndSize(type, NULL) : NULL;
    int error = 0;
    memset(identity, 0, sizeof *identity);
    if (text) {
        *kind = strcmp(text, "directory") == 0 ? BAGS_PATH_DIRECTORY : BAGS_PATH_FILE;
        PyObject *bytes =
            *kind == BAGS_PATH_FILE ? PyMapping_GetItemString(info, "size") : NULL;
        identity->size = bytes ? PyLong_AsUnsignedLongLong(bytes) : 0;
        identity->inode = PyErr_Occurred() ? 0 : info_version(info);
        Py_XDECREF(bytes);
    }
    if (PyErr_Occurred())
        error = exception_number(storage);
    Py_XDECREF(done);
    Py_XDECREF(info);
    Py_XDECREF(type);
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
    PyObject *bytes = PyObject_CallMethod(storage->fs, "cat_file", "sKK", from->path,
        (unsigned long long)offset, (unsigned long long)(offset + size));
    Py_buffer view;
    if (bytes && !PyObject_GetBuffer(bytes, &view, PyBUF_SIMPLE)) {
        *done = (size_t)view.len < size ? (size_t)view.len : size;
        memcpy(data, view.buf, *done);
        PyBuffer_Release(&view);
    }
    if (PyErr_Occurred())
        error = exception_number(storage);
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
    Storage *storage = (Storage *)user;
    int stopped = 0;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *ls = PyObject_GetAttrString(storage->fs, "ls"), *list = NULL;
    PyObject *args = Py_BuildValue("(s)", path),
             *kwargs = Py_BuildValue("{sO}", "detail", Py_False);
    if (ls && args && kwargs)
        list = PyObject_Call(ls, args, kwargs);
    Py_ssize_t count = list ? PySequence_Size(list) : 0;
    for (Py_ssize_t i = 0; !stopped && !PyErr_Occurred() && i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        const char *name =
            item && PyUnicode_Check(item) ? PyUnicode_AsUTF8AndSize(item, NULL) : NULL;
        size_t end = name ? strlen(name) : 0, start;
        while (end > 0 && name[end - 1] == '/')
            end--;
        for (start = end; start > 0 && name[start - 1] != '/'; start--)
            ;
        char *copy = end > start ? strndup(name + start, end - start) : NULL;
        if (copy)
            stopped = each(each_user, copy);
        free(copy);
        Py_XDECREF(item);
    }
    int error = PyErr_Occurred() ? exception_number(storage) : stopped;
    Py_XDECREF(ls);
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    Py_XDECREF(list);
    PyGILState_Release(gil);
    return error;
}

static void fs_explain(
    void *user, const char *path, int error, char *text, size_t size) {
    (void)path;
    snprintf(text, size, "%s", error == ENOENT ? "" : ((Storage *)user)->why);
}

static void fs_hooks(Storage *storage, PyObject *fs) {
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

static int open_http(State *state, Storage *storage, PyObject *dict) {
    Server server;
    const Far *far = load_far();
    bags_error err;
    memset(&server, 0, sizeof server);
    if (!far || !far->http_open) {
        if (!PyErr_Occurred())
            PyErr_SetString(
                PyExc_ValueError, "this build has no http: libcurl was missing");
        return -1;
    }
    PyObject *where = PyUnicode_FromString("storage");
    bool good =
        where && set_options(server_options, &server, dict, where, NULL, NULL, NULL);
    Py_XDECREF(where);
    if (!good)
        return -1;
    if (server.cache) {
        storage->cache = bags_cache_open(server.cache, &server.keep, &err);
        if (!storage->cache)
            return raise_error(state, &err, NULL), -1;
        server.http.recall = bags_cache_recall;
        server.http.remember = bags_cache_remember;
        server.http.cache = storage->cache;
    }
    storage->http = far->http_open(&server.http, &err);
    if (!storage->http)
        return PyErr_SetString(PyExc_OSError, err.message), -1;
    const bags_io *io = far->http_io(storage->http);
    if (server.cache)
        io = bags_cache_io(storage->cache, io, &err);
    if (!io)
        return raise_error(state, &err, NULL), -1;
    storage->io = *io;
    return 0;
}

PyObject *open_storage(
    State *state, const char *path, PyObject *object, const bags_io **io) {
    Storage *storage = (Storage *)new_object(state->storage);
    bool options = object == Py_None || PyDict_Check(object);
    bags_archive_options with;
    bags_error err;
    if (!storage)
        return NULL;
    memset(&with, 0, sizeof with);
    storage->io = *map_io();
    if (!options) {
        fs_hooks(storage, object);
    } else if (strncmp(path, "http://", 7) == 0 || strncmp(path, "https://", 8) == 0 ||
               strncmp(path, "s3://", 5) == 0) {
        if (open_http(state, storage, object)) {
            Py_DECREF((PyObject *)storage);
            return NULL;
        }
    }
    size_t length = options ? archive_length(path) : 0;
    char *name = length ? strndup(path, length) : NULL;
    if (name) {
        bags_io below = storage->io;
        with.env.io = &below;
        WITHOUT_GIL(storage->archive = bags_archive_open(name, &with, &err));
        free(name);
        if (!storage->archive) {
            PyObject *shown = PyUnicode_FromString(path);
            raise_error(state, &err, shown);
            Py_XDECREF(shown);
            Py_DECREF((PyObject *)storage);
            return NULL;
        }
        storage->io = *bags_archive_io(storage->archive);
    }
    *io = &storage->io;
    return (PyObject *)storage;
}
