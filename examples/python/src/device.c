/* device.c - DeviceTensor: a tensor in the memory of a GPU, for DLPack. */
#include "core.h"

#include <structmember.h>

/* GPU memory, and its users: the tensor, and each capsule. The last user gives the memory
 * back, in any thread and without the GIL. */
typedef struct Memory {
    bags_cuda *cuda;
    void *data;
    int device;
    long users;
} Memory;

static void leave(Memory *memory) {
    if (__atomic_sub_fetch(&memory->users, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    bags_cuda_give(memory->cuda, memory->data);
    free(memory);
}

typedef struct Tensor {
    PyObject_HEAD Memory *memory;
    bags_tensor about; /* only dtype, dims and shape */
} Tensor;

/* ---- DLPack 0 ---- */

#define DEVICE_CUDA 2 /* kDLCUDA */

typedef struct DLTensor {
    void *data;
    int32_t device_type, device;
    int32_t dims;
    uint8_t code, bits; /* of the dtype */
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;
} DLTensor;

typedef struct DLManaged {
    DLTensor tensor;
    void *owner;
    void (*deleter)(struct DLManaged *managed);
} DLManaged;

/* A managed tensor, and what it points to. */
typedef struct Exported {
    DLManaged managed;
    int64_t shape[8];
} Exported;

static void delete_exported(DLManaged *managed) {
    leave(managed->owner);
    free(managed);
}

/* A capsule that was consumed has another name. */
static void free_capsule(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor"))
        delete_exported(PyCapsule_GetPointer(capsule, "dltensor"));
}

static PyObject *tensor_export(Tensor *tensor) {
    Exported *made = calloc(1, sizeof *made);
    if (!made)
        return PyErr_NoMemory();
    DLTensor *to = &made->managed.tensor;
    for (size_t i = 0; i < tensor->about.dims; i++)
        made->shape[i] = (int64_t)tensor->about.shape[i];
    to->data = tensor->memory->data;
    to->device_type = DEVICE_CUDA;
    to->device = tensor->memory->device;
    to->dims = (int32_t)tensor->about.dims;
    to->code = tensor->about.dtype == BAGS_DTYPE_UINT8 ? 1 : 2;
    to->bits = (uint8_t)(8 * bags_dtype_size(tensor->about.dtype));
    to->lanes = 1;
    to->shape = made->shape;
    made->managed.owner = tensor->memory;
    made->managed.deleter = delete_exported;
    __atomic_add_fetch(&tensor->memory->users, 1, __ATOMIC_RELAXED);
    PyObject *capsule = PyCapsule_New(&made->managed, "dltensor", free_capsule);
    if (!capsule)
        delete_exported(&made->managed);
    return capsule;
}

/* __dlpack__(*, stream=None, ...). The tensor is complete, so no stream has to wait. But
 * its memory is only reused after work in the default stream. */
static PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *named) {
    PyObject *stream = named ? PyDict_GetItemString(named, "stream") : NULL;
    PyObject *copy = named ? PyDict_GetItemString(named, "copy") : NULL;
    if (PyTuple_Size(args) > 0) {
        PyErr_SetString(PyExc_TypeError, "__dlpack__ has only keyword arguments");
        return NULL;
    }
    if (copy == Py_True) {
        PyErr_SetString(PyExc_BufferError, "a tensor on a GPU is not copied");
        return NULL;
    }
    long number = stream && stream != Py_None ? PyLong_AsLong(stream) : 0;
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (number < -1 || number > 1) {
        PyErr_SetString(PyExc_BufferError, "tensors of a Loader are for the default "
                                           "stream of the GPU; use them there");
        return NULL;
    }
    return tensor_export((Tensor *)self);
}

static PyObject *tensor_device(PyObject *self, PyObject *unused) {
    (void)unused;
    return Py_BuildValue("(ii)", DEVICE_CUDA, ((Tensor *)self)->memory->device);
}

static PyObject *tensor_shape(PyObject *self, void *unused) {
    const bags_tensor *about = &((Tensor *)self)->about;
    PyObject *out = PyTuple_New((Py_ssize_t)about->dims);
    (void)unused;
    for (size_t i = 0; out && i < about->dims; i++) {
        PyObject *side = PyLong_FromUnsignedLongLong(about->shape[i]);
        if (!side || PyTuple_SetItem(out, (Py_ssize_t)i, side))
            Py_CLEAR(out);
    }
    return out;
}

static PyObject *tensor_dtype(PyObject *self, void *unused) {
    (void)unused;
    return PyUnicode_FromString(bags_dtype_name(((Tensor *)self)->about.dtype));
}

static void tensor_dealloc(PyObject *self) {
    if (((Tensor *)self)->memory)
        leave(((Tensor *)self)->memory);
    free_object(self);
}

PyObject *new_device_tensor(State *state, bags_cuda *cuda, bags_loader *loader,
    const bags_batch *batch, size_t i) {
    Tensor *out = (Tensor *)new_object(state->device);
    Memory *memory = out ? calloc(1, sizeof *memory) : NULL;
    void *data = memory ? bags_loader_take(loader, batch, i) : NULL;
    if (!data) {
        free(memory);
        Py_XDECREF((PyObject *)out);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    memory->cuda = cuda;
    memory->data = data;
    memory->device = (int)bags_cuda_device(cuda);
    memory->users = 1;
    out->memory = memory;
    out->about = batch->tensors[i];
    return (PyObject *)out;
}

static PyMethodDef tensor_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack,
        METH_VARARGS | METH_KEYWORDS, "A DLPack capsule without a copy."},
    {"__dlpack_device__", tensor_device, METH_NOARGS, "(kDLCUDA, number of the GPU)"},
    {"__reduce__", no_pickle, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyGetSetDef tensor_gets[] = {{"shape", tensor_shape, NULL, NULL, NULL},
    {"dtype", tensor_dtype, NULL, "The name of the dtype.", NULL}, {0}};
static PyType_Slot tensor_slots[] = {
    {Py_tp_doc, "An array in the memory of a GPU, for DLPack: torch.from_dlpack."},
    {Py_tp_dealloc, tensor_dealloc}, {Py_tp_methods, tensor_methods},
    {Py_tp_getset, tensor_gets}, {0, NULL}};
PyType_Spec device_spec = {"bags._core.DeviceTensor", sizeof(Tensor), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, tensor_slots};
