/* module.c - the module bags._core. */
#include "core.h"

#include <sys/mman.h>

static int module_exec(PyObject *module);
static int module_visit(PyObject *module, visitproc visit, void *arg);
static int module_clear(PyObject *module);
static void module_free(void *module);

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_mod_gil /* free-threaded Python then enables the GIL: close() relies on it */
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL}};
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "bags._core",
    "Datasets in the Bag and Bags formats, on bags.h.", sizeof(State), NULL,
    module_slots, module_visit, module_clear, module_free};

/* The module state of a type or of its subclass. The latter may be a Python class. */
State *state_of(PyTypeObject *type) {
    for (; type; type = (PyTypeObject *)PyType_GetSlot(type, Py_tp_base)) {
        PyObject *module = PyType_GetModule(type);
        if (module && PyModule_GetDef(module) == &module_def)
            return (State *)PyModule_GetState(module);
        PyErr_Clear();
    }
    return NULL;
}

/* ---- bags._far ---- */

/* One per process, like the code it points to. */
static const Far *far_functions;

const Far *load_far(void) {
    if (!far_functions) {
        OWNED PyObject *module = PyImport_ImportModule("bags._far");
        far_functions = module ? (const Far *)PyCapsule_Import(FAR_CAPSULE, 0) : NULL;
    }
    return far_functions;
}

/* Load the codec in whichever thread first opens a type of videos; the caller may have
 * released the GIL. */
static bags_code far_load(bags_error *err) {
    PyGILState_STATE gil = PyGILState_Ensure();
    bags_code code = BAGS_OK;
    if (!load_far()) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        OWNED PyObject *text = value ? PyObject_Str(value) : NULL;
        const char *why = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
        code = bags_fail(err, BAGS_ERROR_TYPE,
            "the codec for videos cannot be loaded: %.300s", why ? why : "unknown");
        PyErr_Clear();
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
    } else if (!far_functions->mp4)
        code = bags_fail(err, BAGS_ERROR_TYPE, "this build has no codec for videos");
    PyGILState_Release(gil);
    return code;
}

static bags_code far_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    (void)codec;
    bags_code code = far_load(err);
    return code ? code
                : far_functions->mp4->open(
                      far_functions->mp4, type, allocator, state, err);
}

static bags_code far_encode(void *state, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    return far_functions->mp4->encode(state, value, scratch, blob, err);
}

static bags_code far_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    return far_functions->mp4->decode(state, blob, scratch, value, err);
}

static void far_close(void *state) { far_functions->mp4->close(state); }

static const bags_codec far_mp4 = {
    "mp4 webm", far_open, far_encode, far_decode, far_close, NULL, NULL};

/* ---- maps ---- */

static bags_io local_io;

/* Make the map writable but private. NumPy's arrays over a map are read-only, but
 * PyTorch writes to them if told to. With a private map, that changes memory, not the
 * file, and does not crash the process. If the system refuses because it counts the
 * bytes as memory, the map stays read-only. */
static int map_private(void *user, void *file, size_t size, const void **data) {
    int error = bags_io_local()->map(user, file, size, data);
    if (!error)
        mprotect((void *)(uintptr_t)*data, size, PROT_READ | PROT_WRITE);
    return error;
}

const bags_io *map_io(void) { return &local_io; }

/* ---- code that signal handlers may interrupt ---- */

static int tool_open(void *user, const char *path, int mode, void **file) {
    return signal_raised_sometimes() ? EINTR
                                     : bags_io_local()->open(user, path, mode, file);
}

static int tool_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    size = size < (8 << 20) ? size : 8 << 20;
    return signal_raised_sometimes()
               ? EINTR
               : bags_io_local()->read_at(user, file, offset, data, size, done);
}

static int tool_write(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    size = size < (8 << 20) ? size : 8 << 20;
    return signal_raised_sometimes()
               ? EINTR
               : bags_io_local()->write_at(user, file, offset, data, size, done);
}

static bags_io interruptible_io;

const bags_io *tool_io(void) { return &interruptible_io; }

/* ---- the module ---- */

static bool add_codecs(State *state) {
    bags_error err;
    static const char bytes[] = "bytes";
    bags_view name = {(const unsigned char *)bytes, sizeof bytes - 1};
    bags_codec packed = *bags_registry_find(NULL, name);
    packed.names = "msgpack tree"; /* values.c packs and unpacks these */
    state->registry = bags_registry_create(NULL, &err);
    state->inside = bags_registry_create(NULL, &err);
    state->colours = bags_registry_create(NULL, &err);
    state->blobs = bags_registry_create(NULL, &err);
    if (!state->registry || !state->inside || !state->colours || !state->blobs)
        return false;
    bags_codec codecs[8];
    size_t count = 0;
    codecs[count++] = bags_codec_npy;
    codecs[count++] = far_mp4;
    /* Some cameras write bytes after an image. */
    state->jpeg.allow_trailing = state->png.allow_trailing = true;
    state->colours_png.allow_trailing = state->webp.allow_trailing = true;
    state->colours_png.expand = true;
#ifdef BAGS_WITH_JPEG
    codecs[count] = bags_codec_jpeg;
    codecs[count++].user = &state->jpeg;
#endif
#ifdef BAGS_WITH_WEBP
    codecs[count] = bags_codec_webp;
    codecs[count++].user = &state->webp;
#endif
#ifdef BAGS_WITH_MSGPACK
    codecs[count++] = bags_codec_msgpack;
    codecs[count++] = bags_codec_tree;
#endif
#ifdef BAGS_WITH_PNG
    codecs[count] = bags_codec_png;
    codecs[count++].user = &state->png;
#endif
    for (size_t i = 0; i < count; i++)
        if (bags_registry_add(state->registry, &codecs[i], &err) ||
            bags_registry_add(state->inside, &codecs[i], &err) ||
            bags_registry_add(state->colours, &codecs[i], &err) ||
            bags_registry_add(state->blobs, &codecs[i], &err))
            return false;
#ifdef BAGS_WITH_PNG
    codecs[count - 1].user = &state->colours_png;
    if (bags_registry_add(state->colours, &codecs[count - 1], &err))
        return false;
#endif
    if (bags_registry_add(state->inside, &packed, &err))
        return false;
#ifdef BAGS_WITH_ZSTD
    bags_codec zstd = bags_codec_zstd;
    state->zstd.registry = state->inside;
    zstd.user = &state->zstd;
    if (bags_registry_add(state->registry, &zstd, &err) ||
        bags_registry_add(state->colours, &zstd, &err))
        return false;
    state->zstd_blobs.blobs = true;
    zstd.user = &state->zstd_blobs;
    if (bags_registry_add(state->blobs, &zstd, &err))
        return false;
#endif
    return true;
}

bool copy_codecs(Codecs *codecs, const bags_registry *from) {
    static const char *const names[] = {
        "npy", "mp4", "msgpack", "tree", "jpeg", "png", "webp", "zstd"};
    bags_error err;
    codecs->registry = bags_registry_create(NULL, &err);
    codecs->jpeg.allow_trailing = codecs->png.allow_trailing = true;
    codecs->webp.allow_trailing = true;
    bool good = codecs->registry != NULL;
    for (size_t i = 0; good && i < sizeof names / sizeof *names; i++) {
        bags_view name = {(const unsigned char *)names[i], strlen(names[i])};
        const bags_codec *found = bags_registry_find(from, name);
        if (!found)
            continue;
        bags_codec one = *found;
        one.user = i == 4   ? (void *)&codecs->jpeg
                   : i == 5 ? (void *)&codecs->png
                   : i == 6 ? (void *)&codecs->webp
                   : i == 7 ? (void *)&codecs->zstd
                            : one.user;
        good = !bags_registry_add(codecs->registry, &one, &err);
    }
    codecs->zstd.registry = codecs->registry;
    if (!good)
        PyErr_NoMemory();
    return good;
}

void codecs_free(Codecs *codecs) { bags_registry_free(codecs->registry); }

/* Base types come first. base, keep: offsets in the state, or 0 for none (no reference
 * is at offset 0). */
static const struct {
    PyType_Spec *spec;
    size_t base, keep;
} types[] = {{&source_spec, 0, offsetof(State, source)},
    {&opened_spec, 0, offsetof(State, opened)},
    {&written_spec, 0, offsetof(State, written)},
    {&blob_spec, 0, offsetof(State, blob)}, {&bag_spec, offsetof(State, opened), 0},
    {&bag_writer_spec, offsetof(State, written), 0},
    {&reader_spec, offsetof(State, opened), offsetof(State, reader)},
    {&writer_spec, offsetof(State, written), 0}, {&column_spec, 0, 0},
    {&loader_spec, 0, 0}, {&storage_spec, 0, offsetof(State, storage)},
    {&index_spec, 0, 0}, {&iteration_spec, 0, offsetof(State, iteration)},
    {&device_spec, 0, offsetof(State, device)}};

static int add_types(PyObject *module, State *state) {
    PyObject **members = (PyObject **)state;
    int code = 0;
    for (size_t i = 0; !code && i < sizeof types / sizeof *types; i++) {
        size_t base = types[i].base / sizeof *members,
               keep = types[i].keep / sizeof *members;
        OWNED PyObject *type = PyType_FromModuleAndSpec(
            module, types[i].spec, base ? members[base] : NULL);
        code = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;
        if (keep)
            members[keep] = Py_XNewRef(type);
    }
    return code;
}

/* The optional formats in this build; mp4 and http are in bags._far. */
static PyObject *built_formats(void) {
    static const char *const names[] = {
#ifdef BAGS_WITH_JPEG
        "jpeg",
#endif
#ifdef BAGS_WITH_PNG
        "png",
#endif
#ifdef BAGS_WITH_WEBP
        "webp",
#endif
#ifdef BAGS_WITH_MSGPACK
        "msgpack",
#endif
#ifdef BAGS_WITH_MP4
        "mp4",
#endif
#ifdef BAGS_WITH_ZSTD
        "zstd",
#endif
#ifdef BAGS_WITH_HTTP
        "http",
#endif
        NULL};
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && names[i]; i++) {
        OWNED PyObject *name = PyUnicode_FromString(names[i]);
        if (!name || PyList_Append(list, name))
            Py_CLEAR(list);
    }
    return list;
}

static int module_exec(PyObject *module) {
    State *state = (State *)PyModule_GetState(module);
    OWNED PyObject *bases = PyTuple_Pack(2, PyExc_ValueError, PyExc_OSError);
    if (bases)
        state->data_error = PyErr_NewExceptionWithDoc("bags._core.DataError",
            "Data is damaged, unfinished, or shards are missing.", bases, NULL);
    local_io = *bags_io_local();
    if (local_io.map)
        local_io.map = map_private;
    interruptible_io = *bags_io_local();
    interruptible_io.map = NULL;
    interruptible_io.open = tool_open;
    interruptible_io.read_at = tool_read;
    interruptible_io.write_at = tool_write;
    if (!add_codecs(state) || !watch_forks())
        return PyErr_NoMemory(), -1;
    OWNED PyObject *structs = option_structs();
    OWNED PyObject *built = built_formats();
    return !structs || PyModule_AddObjectRef(module, "structs", structs) || !built ||
                   PyModule_AddObjectRef(module, "built", built) ||
                   !state->data_error ||
                   PyModule_AddObjectRef(module, "DataError", state->data_error) ||
                   add_types(module, state) ||
                   PyModule_AddFunctions(module, option_functions) ||
                   PyModule_AddFunctions(module, codec_functions) ||
                   PyModule_AddFunctions(module, arrow_functions) ||
                   PyModule_AddFunctions(module, tool_functions) ||
                   PyModule_AddFunctions(module, command_functions) ||
                   PyModule_AddFunctions(module, loader_functions) ||
                   PyModule_AddFunctions(module, door_functions) ||
                   PyModule_AddFunctions(module, view_functions) ||
                   PyModule_AddStringConstant(module, "version", BAGS_VERSION)
               ? -1
               : 0;
}

/* The number of references in the state. */
#define STATE_COUNT (offsetof(State, registry) / sizeof(PyObject *))

static int module_visit(PyObject *module, visitproc visit, void *arg) {
    State *state = (State *)PyModule_GetState(module);
    for (size_t i = 0; i < STATE_COUNT; i++)
        Py_VISIT(((PyObject **)state)[i]);
    return 0;
}

static int module_clear(PyObject *module) {
    State *state = (State *)PyModule_GetState(module);
    for (size_t i = 0; i < STATE_COUNT; i++)
        Py_CLEAR(((PyObject **)state)[i]);
    return 0;
}

static void module_free(void *module) {
    State *state = (State *)PyModule_GetState((PyObject *)module);
    module_clear((PyObject *)module);
    bags_registry_free(state->registry);
    bags_registry_free(state->inside);
    bags_registry_free(state->colours);
    bags_registry_free(state->blobs);
    state->registry = state->inside = state->colours = state->blobs = NULL;
}

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&module_def); }
