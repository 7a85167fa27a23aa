/* formats.c - the module bags._doors: importers and exporters. See doors.h. */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "doors.h"

#define IMPORTER(name) &bags_import_##name,
#define IMPORTER_WITH(name, detect) IMPORTER(name)
static const bags_importer *const importers[] = {
#include "importers.h"
    NULL};

#define EXPORTER(name) &bags_export_##name,
#define EXPORTER_WITH(name, endings) EXPORTER(name)
static const bags_exporter *const exporters[] = {
#include "exporters.h"
    NULL};

#ifdef BAGS_WITH_IMPORT_GULP /* which has the same libraries */
#include "pack.h"
#else
#define bags_import_pack_json NULL
#endif

static Doors functions = {importers, exporters, bags_import_recognize, bags_source_open,
    bags_source_read, bags_source_close, bags_import_name, bags_conversion_want,
    bags_conversion_open, bags_conversion_count, bags_conversion_get,
    bags_conversion_close, bags_import_pack_json, bags_export};

static int doors_exec(PyObject *module) {
    PyObject *capsule = PyCapsule_New(&functions, DOORS_CAPSULE, NULL);
    int code = capsule ? PyModule_AddObjectRef(module, "functions", capsule) : -1;
    Py_XDECREF(capsule);
    return code;
}

static PyModuleDef_Slot doors_slots[] = {{Py_mod_exec, doors_exec}, {0, NULL}};
static struct PyModuleDef doors_def = {
    PyModuleDef_HEAD_INIT, "bags._doors", NULL, 0, NULL, doors_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__doors(void) { return PyModuleDef_Init(&doors_def); }
