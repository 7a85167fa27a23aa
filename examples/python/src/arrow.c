/*
 * arrow.c - Export Python objects with buffers through Arrow's C data interface.
 *
 *     arrow_schema((format, name, children))     a capsule of ArrowSchema; a fourth
 *                                                number has flags, such as nullable
 *     arrow_array((length, buffers, children))   of ArrowArray; a buffer may be None, and a
 *                                                fourth number counts the nulls
 *     arrow_stream(schema, iterator)             of ArrowArrayStream, of such arrays
 *
 * bags/arrays.py calls these functions. Each struct keeps its buffers alive.
 */
#include "core.h"

/* ---- Arrow ---- */

struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data; /* children, format and name, in one allocation */
};
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data; /* ArrayParts, then children */
};
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data; /* Stream */
};
typedef struct ArrayParts {
    Py_buffer views[3];
    const void *buffers[3];
} ArrayParts;
typedef struct Stream {
    PyObject *schema, *arrays;
    int failed; /* errno; also returned by every later call */
    char message[BAGS_ERROR_SIZE];
} Stream;

static void schema_release(struct ArrowSchema *schema) {
    for (int64_t i = 0; i < schema->n_children; i++)
        if (schema->children[i]->release)
            schema->children[i]->release(schema->children[i]);
    free(schema->private_data);
    schema->release = NULL;
}

/* Build *schema. On failure, sets an exception, and leaves *schema released or
 * zeroed. */
static bool schema_build(struct ArrowSchema *schema, PyObject *tree) {
    const char *format, *name;
    PyObject *children;
    long long flags = 0;
    memset(schema, 0, sizeof *schema);
    if (!PyArg_ParseTuple(
            tree, "ssO!|L", &format, &name, &PyTuple_Type, &children, &flags))
        return false;
    size_t count = (size_t)PyTuple_Size(children), size = strlen(format) + 1;
    char *memory = (char *)calloc(
        1, count * (sizeof schema + sizeof *schema) + size + strlen(name) + 1);
    if (!memory)
        return PyErr_NoMemory(), false;
    struct ArrowSchema *nodes =
        (struct ArrowSchema *)(void *)(memory + count * sizeof schema);
    schema->private_data = memory;
    schema->flags = flags;
    schema->release = schema_release;
    schema->children = (struct ArrowSchema **)(void *)memory;
    schema->format = strcpy((char *)(nodes + count), format);
    schema->name = strcpy((char *)(nodes + count) + size, name);
    for (size_t i = 0; i < count; i++) {
        schema->children[i] = &nodes[i];
        schema->n_children++;
        if (!schema_build(&nodes[i], PyTuple_GetItem(children, (Py_ssize_t)i)))
            return schema_release(schema), false;
    }
    return true;
}

static void array_release(struct ArrowArray *array) {
    ArrayParts *parts = (ArrayParts *)array->private_data;
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release)
            array->children[i]->release(array->children[i]);
    PyGILState_STATE gil = PyGILState_Ensure();
    for (int i = 0; i < 3; i++)
        PyBuffer_Release(&parts->views[i]); /* does nothing for None */
    PyGILState_Release(gil);
    free(parts);
    array->release = NULL;
}

static bool array_build(struct ArrowArray *array, PyObject *tree) {
    PyObject *buffers, *children;
    long long length, nulls = 0;
    memset(array, 0, sizeof *array);
    if (!PyArg_ParseTuple(tree, "LO!O!|L", &length, &PyTuple_Type, &buffers,
            &PyTuple_Type, &children, &nulls))
        return false;
    size_t count = (size_t)PyTuple_Size(children);
    ArrayParts *parts =
        (ArrayParts *)calloc(1, sizeof *parts + count * (sizeof array + sizeof *array));
    if (!parts)
        return PyErr_NoMemory(), false;
    array->length = length;
    array->null_count = nulls;
    array->n_buffers = PyTuple_Size(buffers);
    array->buffers = parts->buffers;
    array->children = (struct ArrowArray **)(void *)(parts + 1);
    array->private_data = parts;
    array->release = array_release;
    struct ArrowArray *nodes = (struct ArrowArray *)(void *)(array->children + count);
    bool good = array->n_buffers <= 3;
    if (!good)
        PyErr_SetString(PyExc_ValueError, "more than 3 buffers");
    for (Py_ssize_t i = 0; good && i < array->n_buffers; i++) {
        PyObject *buffer = PyTuple_GetItem(buffers, i);
        good = buffer == Py_None ||
               !PyObject_GetBuffer(buffer, &parts->views[i], PyBUF_SIMPLE);
        parts->buffers[i] = parts->views[i].buf;
    }
    for (size_t i = 0; good && i < count; i++) {
        array->children[i] = &nodes[i];
        array->n_children++;
        good = array_build(&nodes[i], PyTuple_GetItem(children, (Py_ssize_t)i));
    }
    if (!good)
        array_release(array);
    return good;
}

/* Store the exception as text. */
static int stream_fail(Stream *stream) {
    OWNED PyObject *type, *value, *trace;
    stream->failed = PyErr_ExceptionMatches(PyExc_MemoryError) ? ENOMEM : EIO;
    PyErr_Fetch(&type, &value, &trace);
    OWNED PyObject *text = value ? PyObject_Str(value) : NULL;
    const char *message = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    snprintf(stream->message, sizeof stream->message, "%s", message ? message : "");
    PyErr_Clear();
    return stream->failed;
}

static int stream_schema(struct ArrowArrayStream *arrow, struct ArrowSchema *schema) {
    Stream *stream = (Stream *)arrow->private_data;
    PyGILState_STATE gil = PyGILState_Ensure();
    int error = schema_build(schema, stream->schema) ? 0 : stream_fail(stream);
    PyGILState_Release(gil);
    return error;
}

static int stream_next(struct ArrowArrayStream *arrow, struct ArrowArray *array) {
    Stream *stream = (Stream *)arrow->private_data;
    memset(array, 0, sizeof *array);
    if (stream->failed)
        return stream->failed;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *tree = PyIter_Next(stream->arrays); /* NULL: the end, or an exception */
    int error = tree ? !array_build(array, tree) : PyErr_Occurred() != NULL;
    Py_XDECREF(tree);
    if (error)
        error = stream_fail(stream);
    PyGILState_Release(gil);
    return error;
}

static const char *stream_error(struct ArrowArrayStream *arrow) {
    return ((Stream *)arrow->private_data)->message;
}

static void stream_release(struct ArrowArrayStream *arrow) {
    Stream *stream = (Stream *)arrow->private_data;
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_XDECREF(stream->schema);
    Py_XDECREF(stream->arrays);
    PyGILState_Release(gil);
    free(stream);
    arrow->release = NULL;
}

/* Release any of these structs. If a consumer has taken the struct, it has set
 * `release` to NULL. */
static void capsule_free(PyObject *capsule) {
    const char *name = PyCapsule_GetName(capsule);
    void *of = PyCapsule_GetPointer(capsule, name);
    struct ArrowSchema *schema = (struct ArrowSchema *)of;
    struct ArrowArray *array = (struct ArrowArray *)of;
    struct ArrowArrayStream *stream = (struct ArrowArrayStream *)of;
    if (strcmp(name, "arrow_schema") == 0 && schema->release)
        schema->release(schema);
    else if (strcmp(name, "arrow_array") == 0 && array->release)
        array->release(array);
    else if (strcmp(name, "arrow_array_stream") == 0 && stream->release)
        stream->release(stream);
    free(of);
}

/* Create a capsule that contains a zeroed struct. */
static PyObject *new_capsule(size_t size, const char *name, void **made) {
    *made = calloc(1, size);
    PyObject *capsule =
        *made ? PyCapsule_New(*made, name, capsule_free) : PyErr_NoMemory();
    if (!capsule)
        free(*made);
    return capsule;
}

static PyObject *make_schema(PyObject *module, PyObject *tree) {
    void *made;
    PyObject *capsule = new_capsule(sizeof(struct ArrowSchema), "arrow_schema", &made);
    (void)module;
    if (capsule && !schema_build((struct ArrowSchema *)made, tree))
        Py_CLEAR(capsule);
    return capsule;
}

static PyObject *make_array(PyObject *module, PyObject *tree) {
    void *made;
    PyObject *capsule = new_capsule(sizeof(struct ArrowArray), "arrow_array", &made);
    (void)module;
    if (capsule && !array_build((struct ArrowArray *)made, tree))
        Py_CLEAR(capsule);
    return capsule;
}

static PyObject *make_stream(PyObject *module, PyObject *args) {
    PyObject *schema, *arrays;
    void *made;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO", &schema, &arrays))
        return NULL;
    PyObject *capsule =
        new_capsule(sizeof(struct ArrowArrayStream), "arrow_array_stream", &made);
    Stream *stream = capsule ? (Stream *)calloc(1, sizeof *stream) : NULL;
    if (capsule && !stream) {
        Py_DECREF(capsule);
        return PyErr_NoMemory();
    }
    if (!capsule)
        return NULL;
    stream->schema = Py_NewRef(schema);
    stream->arrays = Py_NewRef(arrays);
    *(struct ArrowArrayStream *)made = (struct ArrowArrayStream){
        stream_schema, stream_next, stream_error, stream_release, stream};
    return capsule;
}

PyMethodDef arrow_functions[] = {{"arrow_schema", make_schema, METH_O, NULL},
    {"arrow_array", make_array, METH_O, NULL},
    {"arrow_stream", make_stream, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
