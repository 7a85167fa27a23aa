/* formats.c - the module bags._doors: importers and exporters. See doors.h. */
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "doors.h"

/* The same as in examples/bags/import.c, and below as in examples/bags/target.c. */
static const bags_importer *const importers[] = {
#ifdef BAGS_WITH_IMPORT_LEROBOT
    &bags_import_lerobot,
#endif
#ifdef BAGS_WITH_IMPORT_GULP
    &bags_import_gulp,
#endif
#ifdef BAGS_WITH_IMPORT_ZARR
    &bags_import_zarr,
#endif
    &bags_import_benzina,
#ifdef BAGS_WITH_IMPORT_WEBDATASET
    &bags_import_webdataset,
#endif
#ifdef BAGS_WITH_IMPORT_RLDS
    &bags_import_rlds,
#endif
#ifdef BAGS_WITH_IMPORT_TFRECORD
    &bags_import_tfrecord,
#endif
#ifdef BAGS_WITH_IMPORT_MDS
    &bags_import_mds,
#endif
#ifdef BAGS_WITH_IMPORT_HDF5
    &bags_import_hdf5,
#endif
#ifdef BAGS_WITH_IMPORT_MCAP
    &bags_import_mcap,
#endif
#ifdef BAGS_WITH_IMPORT_ARROW
    &bags_import_arrow,
#endif
#ifdef BAGS_WITH_IMPORT_CSV
    &bags_import_csv,
#endif
    &bags_import_lmdb, &bags_import_megatron, &bags_import_tokens, &bags_import_npy,
    &bags_import_video, &bags_import_images, &bags_import_parquet, &bags_import_sql,
    NULL};

static const bags_exporter *const exporters[] = {&bags_export_webdataset,
    &bags_export_tfrecord, &bags_export_mds, &bags_export_images, &bags_export_csv,
    &bags_export_parquet,
#ifdef BAGS_WITH_EXPORT_HDF5
    &bags_export_hdf5,
#endif
#ifdef BAGS_WITH_EXPORT_LEROBOT
    &bags_export_lerobot,
#endif
    NULL};

static Doors functions = {importers, exporters, bags_import_recognize, bags_source_open,
    bags_source_read, bags_source_close, bags_export};

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
