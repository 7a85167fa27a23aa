/* values.c - convert Python objects to C values, and blobs to Python objects. */
#include "core.h"

#include "blocks.h"
#include "values.h"

/* ---- bytes exposed to Python ---- */

typedef struct Blob {
    PyObject_HEAD PyObject *owner;
    const void *data;
    size_t size;
    bool writable;
} Blob;

static int blob_buffer(PyObject *self, Py_buffer *view, int flags) {
    Blob *blob = (Blob *)self;
    return PyBuffer_FillInfo(view, self, (void *)(uintptr_t)blob->data,
        (Py_ssize_t)blob->size, !blob->writable, flags);
}

static void blob_dealloc(PyObject *self) {
    Py_XDECREF(((Blob *)self)->owner);
    free_object(self);
}

static PyType_Slot blob_slots[] = {
    {Py_bf_getbuffer, blob_buffer}, {Py_tp_dealloc, blob_dealloc}, {0, NULL}};
PyType_Spec blob_spec = {"bags._core.Blob", sizeof(Blob), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, blob_slots};

PyObject *new_blob(State *state, PyObject *owner, const void *data, size_t size) {
    Blob *blob = (Blob *)new_object(state->blob);
    if (blob) {
        blob->owner = Py_NewRef(owner);
        blob->data = data;
        blob->size = size;
    }
    return (PyObject *)blob;
}

PyObject *new_bytes(bags_view bytes) {
    return PyBytes_FromStringAndSize((const char *)bytes.data, (Py_ssize_t)bytes.size);
}

PyObject *new_view(State *state, PyObject *owner, bags_view bytes, bool borrowed) {
    OWNED PyObject *of =
        borrowed ? new_blob(state, owner, bytes.data, bytes.size) : new_bytes(bytes);
    return of ? PyMemoryView_FromObject(of) : NULL;
}

bool load_numpy(State *state) {
    if (state->ndarray)
        return true;
    OWNED PyObject *numpy = PyImport_ImportModule("numpy");
    OWNED PyObject *array = numpy ? PyObject_GetAttrString(numpy, "ndarray") : NULL;
    OWNED PyObject *numbers = array ? PyImport_ImportModule("bags.numbers") : NULL;
    SET(state->generic, numbers ? PyObject_GetAttrString(numpy, "generic") : NULL);
    SET(state->contiguous,
        state->generic ? PyObject_GetAttrString(numbers, "contiguous") : NULL);
    SET(state->exact,
        state->contiguous ? PyObject_GetAttrString(numbers, "exact") : NULL);
    bool good = state->exact != NULL;
    for (int i = 1; good && i <= BAGS_DTYPE_COMPLEX128; i++) {
        state->dtypes[i] =
            PyObject_CallMethod(numpy, "dtype", "s", bags_dtype_name((bags_dtype)i));
        good = state->dtypes[i] != NULL;
    }
    if (good)
        state->ndarray = Py_NewRef(array);
    return good;
}

/* Arrays up to this size are copied. This costs less than an object that keeps the
 * reader alive, and aligns the elements. */
#define SMALL 1024

PyObject *array_over(State *state, const bags_value *value, PyObject *data) {
    if (!data || !load_numpy(state))
        return NULL;
    OWNED PyObject *shape = PyTuple_New((Py_ssize_t)value->dims);
    for (size_t i = 0; shape && i < value->dims; i++) {
        PyObject *length = PyLong_FromUnsignedLongLong(value->shape[i]);
        if (!length || PyTuple_SetItem(shape, (Py_ssize_t)i, length) < 0)
            Py_CLEAR(shape);
    }
    return shape ? PyObject_CallFunctionObjArgs(state->ndarray, shape,
                       state->dtypes[value->dtype],
                       value->size ? data
                                   : NULL, /* NumPy requires a byte in every buffer */
                       NULL)
                 : NULL;
}

PyObject *new_array(State *state, PyObject *owner, const bags_value *value,
    bool borrowed, bool writable) {
    OWNED PyObject *data = NULL;
    bool shared = borrowed && value->size > SMALL;
    if (!load_numpy(state))
        return NULL;
    if (shared)
        data = new_blob(state, owner, value->data, value->size);
    else if (writable)
        data = PyByteArray_FromStringAndSize(
            (const char *)value->data, (Py_ssize_t)value->size);
    else
        data = PyBytes_FromStringAndSize(
            (const char *)value->data, (Py_ssize_t)value->size);
    if (data && shared)
        ((Blob *)data)->writable = writable;
    return array_over(state, value, data);
}

/* ---- codecs as functions ---- */

/* encode(type, value): returns bytes */
static PyObject *encode_one(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *type;
    PyObject *value;
    AT_END(arena_free) Arena arena = {0};
    AT_END(field_clear) Field field = {0};
    AT_END(bags_buffer_free) bags_buffer scratch = {0};
    bags_view blob;
    bags_error err;
    if (!PyArg_ParseTuple(args, "sO", &type, &value) ||
        field_init(state, &field, "", type, NULL) ||
        arena_add(state, &arena, &field, value))
        return NULL;
    return bags_encode(state->registry, field.type, arena.values, &scratch, &blob, &err)
               ? raise_error(state, &err, NULL)
               : new_bytes(blob);
}

/* decode(type, blob): returns a value */
static PyObject *decode_one(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *type;
    AT_END(PyBuffer_Release) Py_buffer bytes = {0};
    AT_END(field_clear) Field field = {0};
    AT_END(row_clear) Row row = {0};
    if (!PyArg_ParseTuple(args, "sy*", &type, &bytes) ||
        field_init(state, &field, "", type, NULL))
        return NULL;
    bags_view blob = {(const unsigned char *)bytes.buf, (size_t)bytes.len};
    return decode(state, &field, blob, NULL, &row, SIZE_MAX, 0, 0);
}

/* parse(type): returns ("array(float32,3)", "array", ("float32", "3")), also for a type
 * with [] */
static PyObject *parse_type(PyObject *module, PyObject *text) {
    State *state = (State *)PyModule_GetState(module);
    bags_type type;
    bags_error err;
    const char *word = PyUnicode_AsUTF8AndSize(text, NULL);
    if (!word)
        return NULL;
    if (bags_type_parse(word, &type, &err))
        return raise_error(state, &err, NULL);
    PyObject *args = PyTuple_New((Py_ssize_t)type.count);
    for (size_t i = 0; args && i < type.count; i++) {
        bags_view of = bags_type_argument(&type, i);
        PyObject *arg =
            PyUnicode_FromStringAndSize((const char *)of.data, (Py_ssize_t)of.size);
        if (!arg || PyTuple_SetItem(args, (Py_ssize_t)i, arg))
            Py_CLEAR(args);
    }
    size_t size = strlen(word) - (type.sequence ? 2 : 0);
    return Py_BuildValue("s#s#N", word, (Py_ssize_t)size, (const char *)type.name.data,
        (Py_ssize_t)type.name.size, args);
}

/* complete(type): returns "array(float32)" for "float32"; anything else stays as it is,
 * even if it is not a type */
static PyObject *complete_type(PyObject *module, PyObject *text) {
    State *state = (State *)PyModule_GetState(module);
    AT_END(bags_buffer_free) bags_buffer out = {0};
    bags_error err;
    const char *word = PyUnicode_AsUTF8AndSize(text, NULL);
    if (!word)
        return NULL;
    return bags_type_complete(state->registry, word, &out, &err)
               ? Py_NewRef(text)
               : PyUnicode_FromString((const char *)out.data);
}

PyMethodDef codec_functions[] = {{"parse", parse_type, METH_O, NULL},
    {"complete", complete_type, METH_O, NULL},
    {"encode", encode_one, METH_VARARGS, NULL},
    {"decode", decode_one, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

/* ---- fields ---- */

/* Set the shape stated in a type such as array(float32,2,3). */
static void field_array(Field *field, const bags_type *type) {
    bags_view name = bags_type_argument(type, 0);
    field->how = HOW_VALUE;
    field->numbers = true;
    if (type->count == 0 || type->count - 1 > BAGS_MAX_DIMS)
        return;
    field->dtype = bags_dtype_parse((const char *)name.data, name.size, NULL);
    field->dims = type->count - 1;
    for (size_t i = 0; i < field->dims; i++)
        if (!bags_type_number(type, i + 1, &field->shape[i]))
            return; /* -1 */
    if (bags_little_endian() &&
        bags_array_size(field->dtype, field->dims, field->shape, &field->size))
        field->how = HOW_ARRAY;
}

/* Determine how our own codec treats a type. */
static void field_own(Field *field, const bags_type *type) {
    static const struct {
        const char *name;
        How how;
    } hows[] = {{"bytes", HOW_BYTES}, {"utf8", HOW_UTF8}, {"int", HOW_INT},
        {"u64", HOW_INT}, {"i64", HOW_INT}, {"msgpack", HOW_MSGPACK},
        {"tree", HOW_TREE}};
    uint64_t size = 0;
    bags_type inside;
    if (format_type_inside(type, &inside)) {
        field_own(field, &inside);
        field->inside = field->how;
        field->how = HOW_COMPRESSED;
        return;
    }
    field->how = HOW_VALUE;
    for (size_t i = 0; i < sizeof hows / sizeof *hows; i++)
        if (bags_view_is(type->name, hows[i].name))
            field->how = hows[i].how;
    if (bags_view_is(type->name, "array"))
        field_array(field, type);
    field->numbers = field->numbers || bags_view_is(type->name, "npy");
    field->video = bags_view_is(type->name, "mp4") || bags_view_is(type->name, "webm");
    field->is_signed = bags_view_is(type->name, "i64");
    field->is_u64 = bags_view_is(type->name, "u64");
    field->big = bags_view_is(bags_type_argument(type, 1), "big");
    if (field->how == HOW_INT && type->count > 0 && bags_type_number(type, 0, &size))
        field->size = (size_t)size;
    if (field->is_u64 || field->is_signed)
        field->size = 8;
}

int field_init(
    State *state, Field *field, const char *name, const char *type, PyObject *codec) {
    bags_type parsed;
    bags_error err;
    size_t length = strlen(type);
    field->name_utf8 = strdup(name);
    field->type = strdup(type);
    if (!field->name_utf8 || !field->type) {
        PyErr_NoMemory();
        return -1;
    }
    if (bags_type_parse(type, &parsed, &err)) {
        raise_error(state, &err, NULL);
        return -1;
    }
    field->sequence = parsed.sequence;
    if (field->sequence)
        field->type[length - 2] = 0;
    field->name = PyUnicode_InternFromString(name);
    field->text = PyUnicode_FromString(type);
    if (!field->name || !field->text)
        return -1;
    if (codec == Py_None ||
        (codec == Py_Ellipsis && !bags_registry_find(state->registry, parsed.name))) {
        field->how = HOW_BYTES;
    } else if (codec && codec != Py_Ellipsis && codec != Py_True) {
        field->how = HOW_CALL;
        field->given = Py_NewRef(codec);
    } else {
        field_own(field, &parsed);
    }
    return 0;
}

void field_clear(Field *field) {
    Py_CLEAR(field->given);
    Py_CLEAR(field->name);
    Py_CLEAR(field->text);
    free(field->name_utf8);
    free(field->type);
    field->name_utf8 = field->type = NULL;
}

/* ---- objects to values ---- */

/* The dtype for a format, in the syntax of the struct module. */
bags_dtype buffer_dtype(const Py_buffer *buffer) {
    static const bags_dtype sizes[3][9] = {
        {0, BAGS_DTYPE_INT8, BAGS_DTYPE_INT16, 0, BAGS_DTYPE_INT32, 0, 0, 0,
            BAGS_DTYPE_INT64},
        {0, BAGS_DTYPE_UINT8, BAGS_DTYPE_UINT16, 0, BAGS_DTYPE_UINT32, 0, 0, 0,
            BAGS_DTYPE_UINT64},
        {0, 0, BAGS_DTYPE_FLOAT16, 0, BAGS_DTYPE_FLOAT32, 0, 0, 0, BAGS_DTYPE_FLOAT64}};
    const char *format = buffer->format ? buffer->format : "B";
    bool little = bags_little_endian();
    if (*format == '@' || *format == '=' || *format == (little ? '<' : '>'))
        format++;
    if (strcmp(format, "?") == 0)
        return BAGS_DTYPE_BOOL;
    if (strcmp(format, "Zf") == 0)
        return BAGS_DTYPE_COMPLEX64;
    if (strcmp(format, "Zd") == 0)
        return BAGS_DTYPE_COMPLEX128;
    if (!*format || format[1] || buffer->itemsize > 8)
        return BAGS_DTYPE_NONE;
    int row = strchr("bhilqn", *format)   ? 0
              : strchr("BHILQN", *format) ? 1
              : strchr("efd", *format)    ? 2
                                          : -1;
    return row < 0 ? BAGS_DTYPE_NONE : sizes[row][buffer->itemsize];
}

/* Look at the type, not the object, since a table may have a column named "filled".
 * Static types, such as NumPy's array, have no mask; a failing lookup would take longer
 * than everything else. */
bool without_mask(PyObject *array) {
    if (!PyType_HasFeature(Py_TYPE(array), Py_TPFLAGS_HEAPTYPE) ||
        !PyObject_HasAttrString((PyObject *)Py_TYPE(array), "filled"))
        return true;
    PyErr_Format(PyExc_TypeError,
        "values without a mask are required, not %R; filled() makes them",
        (PyObject *)Py_TYPE(array));
    return false;
}

static bool is_plain(PyObject *object) {
    return PyFloat_Check(object) || PyLong_Check(object) || PyComplex_Check(object) ||
           PyList_Check(object) || PyTuple_Check(object);
}

static void release_buffer(Held *held) {
    if (held->buffer) {
        PyBuffer_Release(held->buffer); /* does nothing if the buffer was refused */
        PyMem_Free(held->buffer);
    }
    held->buffer = NULL;
}

/* Convert an array: an object with a buffer or, like a tensor or image, with
 * __array__. */
static int buffer_value(State *state, bags_value *value, Held *held, PyObject *object) {
    if (PyUnicode_Check(object) || PyBytes_Check(object) || PyByteArray_Check(object) ||
        !(PyObject_CheckBuffer(object) || PyObject_HasAttrString(object, "__array__") ||
            PyObject_HasAttrString(object, "__array_interface__"))) {
        PyErr_Format(PyExc_TypeError, "an array is required, not %R; %s",
            (PyObject *)Py_TYPE(object),
            PyBytes_Check(object)
                ? "if its encoder is None, bytes are stored as they are"
                : "numpy.asarray makes one");
        return -1;
    }
    if (!without_mask(object))
        return -1;
    held->buffer = (Py_buffer *)PyMem_Calloc(1, sizeof *held->buffer);
    if (!held->buffer) {
        PyErr_NoMemory();
        return -1;
    }
    int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS;
    if (!PyObject_CheckBuffer(object) ||
        PyObject_GetBuffer(object, held->buffer, flags)) {
        PyErr_Clear(); /* not contiguous, or has no buffer */
        if (!load_numpy(state))
            return -1;
        SET(held->object,
            PyObject_CallFunctionObjArgs(state->contiguous, object, NULL));
        if (!held->object)
            return -1;
        if (PyObject_GetBuffer(held->object, held->buffer, flags)) {
            if (PyErr_ExceptionMatches(PyExc_ValueError)) { /* unknown dtype */
                PyErr_Clear();
                OWNED PyObject *dtype = PyObject_GetAttrString(held->object, "dtype");
                PyErr_Format(PyExc_TypeError,
                    "an array of %S is not supported (expected bool, int, uint, float "
                    "or complex; view('i8') has the numbers of times)",
                    dtype);
            }
            return -1;
        }
    }
    const Py_buffer *buffer = held->buffer;
    bags_dtype dtype = buffer_dtype(buffer);
    if (dtype == BAGS_DTYPE_NONE || buffer->ndim > BAGS_MAX_DIMS) {
        PyErr_Format(PyExc_TypeError,
            "an array with elements \"%s\" is not supported (expected bool, int, "
            "uint, float or complex, of 1 to 8 bytes, in native byte order)",
            buffer->format ? buffer->format : "B");
        return -1;
    }
    *value = bags_array(
        dtype, (size_t)buffer->ndim, (const uint64_t *)buffer->shape, buffer->buf);
    return 0;
}

/* Convert a number, or nested lists of numbers, to the dtype of the field's type. */
static int numbers_value(
    State *state, bags_value *value, Held *held, const Field *field, PyObject *object) {
    if (!load_numpy(state))
        return -1;
    PyObject *dtype = field->dtype ? state->dtypes[field->dtype] : Py_None;
    SET(held->object, PyObject_CallFunctionObjArgs(state->exact, object, dtype, NULL));
    return held->object ? buffer_value(state, value, held, held->object) : -1;
}

/* An array must have the dtype of the type; the scalars of NumPy are plain numbers. */
static int array_value(
    State *state, bags_value *value, Held *held, const Field *field, PyObject *object) {
    if (field->numbers && is_plain(object) && !PyObject_CheckBuffer(object))
        return numbers_value(state, value, held, field, object);
    if (buffer_value(state, value, held, object))
        return -1;
    if (!field->numbers || value->dims || !field->dtype || value->dtype == field->dtype)
        return 0;
    if (!load_numpy(state))
        return -1;
    int scalar = PyObject_IsInstance(object, state->generic);
    if (scalar <= 0)
        return scalar;
    release_buffer(held);
    return numbers_value(state, value, held, field, object);
}

int take_bytes(PyObject *object, Py_buffer *buffer) {
    bool text = PyUnicode_Check(object); /* NumPy's str has a buffer */
    if (text || PyObject_GetBuffer(object, buffer, PyBUF_FORMAT)) {
        PyErr_Clear(); /* a dtype without a format, such as datetime64 */
        if (text || PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE)) {
            if (text || PyErr_ExceptionMatches(PyExc_TypeError) ||
                PyErr_ExceptionMatches(PyExc_BufferError))
                PyErr_Format(PyExc_TypeError, "contiguous bytes are required, not %R",
                    (PyObject *)Py_TYPE(object));
            return -1;
        }
    }
    if (buffer->format && strcmp(buffer->format, "O") == 0) { /* pointers */
        PyBuffer_Release(buffer);
        PyErr_SetString(PyExc_TypeError, "bytes are required, not an array of objects");
        return -1;
    }
    return 0;
}

const char *take_utf8(PyObject *text, Py_ssize_t *size) {
    const char *out = PyUnicode_AsUTF8AndSize(text, size);
    if (!out && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError))
        PyErr_Format(PyExc_ValueError, "%A has surrogates: invalid in UTF-8", text);
    return out;
}

/* Convert an object with a buffer of bytes. */
static int bytes_value(bags_value *value, Held *held, PyObject *object) {
    if (PyBytes_Check(object)) {
        char *data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(object, &data, &size))
            return -1;
        *value = bags_blob(data, (size_t)size);
        return 0;
    }
    held->buffer = (Py_buffer *)PyMem_Calloc(1, sizeof *held->buffer);
    if (!held->buffer) {
        PyErr_NoMemory();
        return -1;
    }
    if (take_bytes(object, held->buffer))
        return -1;
    *value = bags_blob(held->buffer->buf, (size_t)held->buffer->len);
    return 0;
}

int int_value(bags_value *value, PyObject *object) {
    OWNED PyObject *number = PyNumber_Index(object);
    int over = 0;
    if (!number) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "an int is required, not %R",
                (PyObject *)Py_TYPE(object));
        return -1;
    }
    long long small = PyLong_AsLongLongAndOverflow(number, &over);
    if (over > 0)
        *value = bags_uint(PyLong_AsUnsignedLongLong(number));
    else
        *value = bags_int(small);
    if (over < 0 || (over && PyErr_ExceptionMatches(PyExc_OverflowError))) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError,
            "value out of range (%S, minimum -2^63, maximum 2^64-1)", object);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int one_value(
    State *state, bags_value *value, Held *held, const Field *field, PyObject *object);

/* Convert a value for the type inside zstd(...). */
static int compressed_value(
    State *state, bags_value *value, Held *held, const Field *field, PyObject *object) {
    Field plain = *field;
    plain.how = field->inside;
    if (one_value(state, value, held, &plain, object))
        return -1;
    if (value->kind == BAGS_KIND_BLOB)
        value->kind = BAGS_KIND_BYTES;
    return 0;
}

static int one_value(
    State *state, bags_value *value, Held *held, const Field *field, PyObject *object) {
    Py_ssize_t size;
    const char *text;
    switch (field->how) {
    case HOW_BYTES:
        return bytes_value(value, held, object);
    case HOW_INT:
        return int_value(value, object);
    case HOW_ARRAY:
        return array_value(state, value, held, field, object);
    case HOW_UTF8:
        if (!PyUnicode_Check(object)) {
            PyErr_Format(PyExc_TypeError, "str is required, not %R",
                (PyObject *)Py_TYPE(object));
            return -1;
        }
        text = take_utf8(object, &size);
        if (!text)
            return -1;
        *value = bags_utf8_sized(text, (size_t)size);
        return 0;
    case HOW_MSGPACK:
    case HOW_TREE:
        SET(held->object, pack(state, object, field->how == HOW_TREE));
        return held->object ? bytes_value(value, held, held->object) : -1;
    case HOW_CALL:
        SET(held->object, PyObject_CallFunctionObjArgs(field->given, object, NULL));
        return held->object ? bytes_value(value, held, held->object) : -1;
    case HOW_VALUE:
        return array_value(state, value, held, field, object);
    case HOW_COMPRESSED:
        break;
    }
    return compressed_value(state, value, held, field, object);
}

int arena_keep(Arena *arena) {
    for (; arena->kept < arena->count; arena->kept++) {
        bags_value *value = &arena->values[arena->kept];
        Held *held = &arena->held[arena->kept];
        size_t shape = value->dims * sizeof *value->shape;
        if (!held->buffer)
            continue;
        PyObject *copy =
            PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(shape + value->size));
        if (!copy)
            return -1;
        char *data = PyBytes_AsString(copy);
        if (shape)
            memcpy(data, value->shape, shape);
        if (value->size)
            memcpy(data + shape, value->data, value->size);
        value->shape = (const uint64_t *)(void *)data;
        value->data = data + shape;
        release_buffer(held);
        SET(held->object, copy);
    }
    return 0;
}

int arena_add(State *state, Arena *arena, const Field *field, PyObject *object) {
    How how = field->how == HOW_COMPRESSED ? field->inside : field->how;
    bool runs = how == HOW_CALL || ((how == HOW_ARRAY || how == HOW_VALUE) &&
                                       !PyObject_CheckBuffer(object)); /* __array__ */
    if (runs && arena_keep(arena))
        return -1;
    if (arena->count == arena->room) {
        size_t room = arena->room * 2 + 16;
        bags_value *values =
            (bags_value *)PyMem_Realloc(arena->values, room * sizeof *values);
        if (values)
            arena->values = values;
        Held *held =
            values ? (Held *)PyMem_Realloc(arena->held, room * sizeof *held) : NULL;
        if (!held) {
            PyErr_NoMemory();
            return -1;
        }
        arena->held = held;
        arena->room = room;
    }
    /* An encoder may append to the same writer, but this arena belongs to this call. */
    Held *held = &arena->held[arena->count];
    held->object = Py_NewRef(object);
    held->buffer = NULL;
    return one_value(state, &arena->values[arena->count++], held, field, object);
}

int arena_any(State *state, Arena *arena, PyObject *object) {
    Field any = {0};
    any.how = PyUnicode_Check(object)                                  ? HOW_UTF8
              : PyBytes_Check(object) || PyByteArray_Check(object)     ? HOW_BYTES
              : PyIndex_Check(object) && !PyObject_CheckBuffer(object) ? HOW_INT
                                                                       : HOW_ARRAY;
    if (arena_add(state, arena, &any, object))
        return -1;
    bags_value *value = &arena->values[arena->count - 1];
    if (value->kind == BAGS_KIND_BLOB)
        value->kind = BAGS_KIND_BYTES;
    return 0;
}

void arena_reset(Arena *arena) {
    while (arena->count > 0) {
        Held *held = &arena->held[--arena->count];
        release_buffer(held);
        Py_XDECREF(held->object);
    }
    arena->kept = 0;
}

void arena_free(Arena *arena) {
    arena_reset(arena);
    PyMem_Free(arena->values);
    PyMem_Free(arena->held);
}

/* ---- blobs to objects ---- */

/* Unpack msgpack inside a zstd frame. */
static PyObject *unpack_inside(State *state, const bags_value *packed, bool tree) {
    bags_view blob = {(const unsigned char *)packed->data, packed->size};
    AT_END(bags_buffer_free) bags_buffer scratch = {0};
    bags_value value;
    bags_error err;
    return bags_decode(
               state->registry, tree ? "tree" : "msgpack", blob, &scratch, &value, &err)
               ? raise_error(state, &err, NULL)
               : unpack(state, value.object, tree);
}

/* Load an npy array whose dtype is not a bags_dtype: dates, text, structures. */
static PyObject *load_npy(State *state, const bags_value *value) {
    AT_END(bags_buffer_free) bags_buffer scratch = {0};
    bags_view file;
    bags_error err;
    if (bags_encode(state->registry, "npy", value, &scratch, &file, &err))
        return raise_error(state, &err, NULL);
    OWNED PyObject *bytes = new_bytes(file), *io = PyImport_ImportModule("io");
    OWNED PyObject *numpy = io ? PyImport_ImportModule("numpy") : NULL;
    OWNED PyObject *opened =
        bytes && numpy ? PyObject_CallMethod(io, "BytesIO", "O", bytes) : NULL;
    return opened ? PyObject_CallMethod(numpy, "load", "O", opened) : NULL;
}

/* Return a value as an object. If Python cannot represent it, raises a DataError that
 * names the place, as for an invalid blob; for values that bags.h does not support, an
 * OverflowError. */
static PyObject *placed_object(State *state, const Field *field, const Row *row,
    size_t item, uint64_t datapoint, PyObject *object) {
    PyObject *type, *value, *trace;
    bags_error err;
    bags_code code = BAGS_ERROR_CORRUPT;
    if (object)
        return object;
    if (PyErr_ExceptionMatches(PyExc_OverflowError)) /* from bags_tree_array */
        code = BAGS_ERROR_LIMIT;
    else if (!PyErr_ExceptionMatches(PyExc_TypeError) &&
             !PyErr_ExceptionMatches(PyExc_ValueError))
        return NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    OWNED PyObject *text = PyObject_Str(value);
    OWNED PyObject *bytes =
        text ? PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace") : NULL;
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    if (!bytes)
        return NULL;
    bags_fail(&err, code, "%s", PyBytes_AsString(bytes));
    if (row->source)
        format_fail_at(row->source->reader, field->name_utf8, datapoint,
            field->sequence ? item : UINT64_MAX, code, &err);
    return raise_error(state, &err, row->source ? row->source->path : NULL);
}

/* Decode with the C codec. */
static PyObject *decode_value(State *state, const Field *field, bags_view blob,
    PyObject *owner, bool borrowed, Row *row, size_t slot, size_t item,
    uint64_t datapoint) {
    bags_value value;
    bags_error err;
    bags_code code;
    WITHOUT_GIL(code = slot == SIZE_MAX ? bags_decode(state->registry, field->type,
                                              blob, &row->scratch, &value, &err)
                                        : bags_row_value(&row->row, slot, item,
                                              &row->scratch, &value, &err));
    if (call_failed(state, code, &err, NULL))
        return NULL;
    How how = field->how == HOW_COMPRESSED ? field->inside : field->how;
    uintptr_t at = (uintptr_t)value.data, start = (uintptr_t)blob.data;
    bool inside = at >= start && at - start <= blob.size;
    switch (value.kind) {
    case BAGS_KIND_UINT:
        return PyLong_FromUnsignedLongLong(value.uint);
    case BAGS_KIND_INT:
        return PyLong_FromLongLong(value.sint);
    case BAGS_KIND_UTF8:
        return PyUnicode_DecodeUTF8(
            (const char *)value.data, (Py_ssize_t)value.size, NULL);
    case BAGS_KIND_ARRAY:
        return new_array(state, owner, &value, borrowed && inside, !inside);
    case BAGS_KIND_BYTES:
        if (how == HOW_MSGPACK || how == HOW_TREE)
            return placed_object(state, field, row, item, datapoint,
                unpack_inside(state, &value, how == HOW_TREE));
        return PyBytes_FromStringAndSize(
            (const char *)value.data, (Py_ssize_t)value.size);
    case BAGS_KIND_OBJECT:
        return placed_object(state, field, row, item, datapoint,
            how == HOW_MSGPACK || how == HOW_TREE
                ? unpack(state, value.object, how == HOW_TREE)
                : load_npy(state, &value));
    default:
        break;
    }
    PyErr_Format(PyExc_TypeError,
        "field \"%s\": a value of type %S is not an array; read its blob without a "
        "decoder",
        field->name_utf8, field->text);
    return NULL;
}

PyObject *decode(State *state, const Field *field, bags_view blob, PyObject *owner,
    Row *row, size_t slot, size_t item, uint64_t datapoint) {
    bool borrowed = owner && !bags_row_owns(&row->row, blob.data);
    PyObject *bytes, *out = NULL;
    bags_value value;
    switch (field->how) {
    case HOW_BYTES:
        return new_bytes(blob);
    case HOW_INT:
        if (blob.size > 8 || (field->size && blob.size != field->size))
            break; /* an error, or the zero after 8 bytes */
        if (field->is_signed)
            return PyLong_FromLongLong((int64_t)bags_load_bytes(blob.data, 8, false));
        return PyLong_FromUnsignedLongLong(
            bags_load_bytes(blob.data, blob.size, field->big));
    case HOW_UTF8:
        out =
            PyUnicode_DecodeUTF8((const char *)blob.data, (Py_ssize_t)blob.size, NULL);
        if (out || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
            return out;
        PyErr_Clear();
        break; /* C reports where */
    case HOW_ARRAY:
        if (blob.size != field->size)
            break;
        value = bags_array(field->dtype, field->dims, field->shape, blob.data);
        return new_array(state, owner, &value, borrowed, false);
    case HOW_CALL:
        bytes = new_bytes(blob);
        out = bytes ? PyObject_CallFunctionObjArgs(field->given, bytes, NULL) : NULL;
        Py_XDECREF(bytes);
        return out;
    case HOW_MSGPACK:
    case HOW_TREE:
    case HOW_COMPRESSED:
    case HOW_VALUE:
        break;
    }
    return decode_value(
        state, field, blob, owner, borrowed, row, slot, item, datapoint);
}
