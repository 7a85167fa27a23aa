/* viewing.c - the server of bags.view, documented in bags/viewing.py. */
#include "core.h"

#include "../../bags/serve.h"

#define SERVING_CAPSULE "bags._core.serving"

/* A server, and the objects whose memory it uses. */
typedef struct Serving {
    serve *server; /* NULL: closed */
    PyObject *page, *module;
    unsigned process; /* this_process() of the creator; its children have no thread */
} Serving;

static void serving_close(Serving *serving) {
    serve *server = serving->server;
    serving->server = NULL;
    if (server && serving->process == this_process())
        WITHOUT_GIL(serve_close(server));
}

static void serving_free(PyObject *capsule) {
    Serving *serving = (Serving *)PyCapsule_GetPointer(capsule, SERVING_CAPSULE);
    serving_close(serving);
    Py_DECREF(serving->page);
    Py_DECREF(serving->module);
    PyMem_Free(serving);
}

/* A RuntimeError with the reason. `path` is not translated. */
static PyObject *serving_failed(const bags_error *err, const char *path) {
    char message[BAGS_ERROR_SIZE];
    message_of_python(err->message, text_in_message(err->message, path), message);
    OWNED PyObject *text = PyUnicode_DecodeFSDefault(message);
    if (text)
        PyErr_SetObject(PyExc_RuntimeError, text);
    return NULL;
}

/* serve_check(): raises RuntimeError if this build has no server */
static PyObject *view_check(PyObject *module, PyObject *unused) {
    bags_error err;
    (void)module, (void)unused;
    if (serve_check(&err))
        return serving_failed(&err, NULL);
    return Py_NewRef(Py_None);
}

/* serve(path, shown, page, port, live): (a capsule, the address); serve.h has the
 * arguments, all texts are bytes */
static PyObject *view_serve(PyObject *module, PyObject *args) {
    const State *state = (const State *)PyModule_GetState(module);
    const char *path, *shown;
    unsigned short port;
    int live;
    PyObject *page;
    bags_error remark, err;
    if (!PyArg_ParseTuple(
            args, "yyO!Hp", &path, &shown, &PyBytes_Type, &page, &port, &live))
        return NULL;
    serve_options options = {
        {(const unsigned char *)PyBytes_AsString(page), (size_t)PyBytes_Size(page)},
        state->blobs, shown, port, live};
    serve *server;
    WITHOUT_GIL(server = serve_open(path, &options, &remark, &err));
    if (!server)
        return serving_failed(&err, shown);
    Serving *serving = (Serving *)PyMem_Malloc(sizeof *serving);
    if (!serving) {
        WITHOUT_GIL(serve_close(server));
        return PyErr_NoMemory();
    }
    *serving = (Serving){server, Py_NewRef(page), Py_NewRef(module), this_process()};
    OWNED PyObject *capsule = PyCapsule_New(serving, SERVING_CAPSULE, serving_free);
    if (capsule)
        return Py_BuildValue(
            "ON", capsule, PyUnicode_DecodeFSDefault(serve_address(server)));
    serving_close(serving);
    Py_DECREF(page);
    Py_DECREF(module);
    PyMem_Free(serving);
    return NULL;
}

/* serve_close(capsule) */
static PyObject *view_close(PyObject *module, PyObject *capsule) {
    Serving *serving = (Serving *)PyCapsule_GetPointer(capsule, SERVING_CAPSULE);
    (void)module;
    if (!serving)
        return NULL;
    serving_close(serving);
    return Py_NewRef(Py_None);
}

PyMethodDef view_functions[] = {{"serve_check", view_check, METH_NOARGS, NULL},
    {"serve", view_serve, METH_VARARGS, NULL},
    {"serve_close", view_close, METH_O, NULL}, {NULL, NULL, 0, NULL}};
