/* far.c - the module bags._far: mp4 and http. See far.h. */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "far.h"

static Far functions = {
#ifdef BAGS_WITH_MP4
    &bags_codec_mp4, bags_mp4_cache_open, bags_mp4_cache_close, bags_mp4_cache_get,
    bags_mp4_reader_info, bags_mp4_reader_part, bags_mp4_reader_place,
    bags_mp4_reader_packet, bags_mp4_reader_get_into,
#else
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
#endif
#ifdef BAGS_WITH_HTTP
    bags_http_open, bags_http_close, bags_http_io, bags_http_upload, bags_http_same
#else
    NULL, NULL, NULL, NULL, NULL
#endif
};

static int far_exec(PyObject *module) {
    PyObject *capsule = PyCapsule_New(&functions, FAR_CAPSULE, NULL);
    int code = capsule ? PyModule_AddObjectRef(module, "functions", capsule) : -1;
    Py_XDECREF(capsule);
    return code;
}

static PyModuleDef_Slot far_slots[] = {{Py_mod_exec, far_exec}, {0, NULL}};
static struct PyModuleDef far_def = {
    PyModuleDef_HEAD_INIT, "bags._far", NULL, 0, NULL, far_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__far(void) { return PyModuleDef_Init(&far_def); }
