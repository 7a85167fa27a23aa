/* pack.c - the types msgpack and tree: convert Python objects to msgpack, and back. */
#include "core.h"

#ifdef BAGS_WITH_MSGPACK
#include <msgpack.h>

#define MAX_DEPTH 511 /* the limit of Python's msgpack package, and of our reader */

typedef struct Packer {
    msgpack_packer to;
    msgpack_sbuffer bytes;
    State *state;
    bool tree;
} Packer;

static bool pack_object(Packer *packer, PyObject *object, int depth);

static bool pack_number(msgpack_packer *to, PyObject *object) {
    bags_value number;
    if (int_value(&number, object))
        return false;
    return !(number.kind == BAGS_KIND_UINT ? msgpack_pack_uint64(to, number.uint)
                                           : msgpack_pack_int64(to, number.sint));
}

static bool pack_items(Packer *packer, PyObject *list, int depth) {
    Py_ssize_t count = PySequence_Size(list);
    bool good = count >= 0 && !msgpack_pack_array(&packer->to, (size_t)count);
    for (Py_ssize_t i = 0; good && i < count; i++) {
        OWNED PyObject *item = PySequence_GetItem(list, i);
        good = item && pack_object(packer, item, depth);
    }
    return good;
}

/* Refuse keys that would be packed as an array or a map: no dict can have them, so they
 * could not be read. */
static bool pack_key(Packer *packer, PyObject *key, int depth) {
    size_t start = packer->bytes.size;
    if (!pack_object(packer, key, depth))
        return false;
    unsigned char first = (unsigned char)packer->bytes.data[start];
    if ((first < 0x80 || first > 0x9f) && (first < 0xdc || first > 0xdf))
        return true;
    PyErr_Format(PyExc_TypeError,
        "%R cannot be a key in msgpack (expected None, bool, int, float, str or bytes)",
        (PyObject *)Py_TYPE(key));
    return false;
}

static bool pack_map(Packer *packer, PyObject *map, int depth) {
    OWNED PyObject *items = PyMapping_Items(map);
    Py_ssize_t count = items ? PyList_Size(items) : -1;
    bool good = count >= 0 && !msgpack_pack_map(&packer->to, (size_t)count);
    for (Py_ssize_t i = 0; good && i < count; i++) {
        PyObject *pair = PyList_GetItem(items, i);
        good = pack_key(packer, PyTuple_GetItem(pair, 0), depth) &&
               pack_object(packer, PyTuple_GetItem(pair, 1), depth);
    }
    return good;
}

static bool pack_bytes(Packer *packer, PyObject *object) {
    AT_END(PyBuffer_Release) Py_buffer view = {0};
    return !take_bytes(object, &view) &&
           !msgpack_pack_bin_with_body(&packer->to, view.buf, (size_t)view.len);
}

/* Refuse dtypes that bags_dtype lacks, such as objects and text: they could not be
 * read. */
static bool check_dtype(PyObject *dtype) {
    OWNED PyObject *kind = PyObject_GetAttrString(dtype, "kind");
    OWNED PyObject *itemsize = kind ? PyObject_GetAttrString(dtype, "itemsize") : NULL;
    const char *text = itemsize ? PyUnicode_AsUTF8AndSize(kind, NULL) : NULL;
    long size = text ? PyLong_AsLong(itemsize) : 0;
    bool good = text && strchr("biufc", *text) && size <= (*text == 'c' ? 16 : 8);
    if (!good && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError,
            "an array in a tree has dtype %R (expected bool, "
            "int, uint, float or complex)",
            dtype);
    return good;
}

/* Pack an array in a tree: ["_", dtype, shape, elements]. */
static bool pack_array(Packer *packer, PyObject *array, int depth) {
    OWNED PyObject *dtype =
        without_mask(array) ? PyObject_GetAttrString(array, "dtype") : NULL;
    OWNED PyObject *code =
        dtype && check_dtype(dtype) ? PyObject_GetAttrString(dtype, "str") : NULL;
    OWNED PyObject *shape = code ? PyObject_GetAttrString(array, "shape") : NULL;
    OWNED PyObject *bytes = shape ? PyObject_CallMethod(array, "tobytes", NULL) : NULL;
    return bytes && !msgpack_pack_array(&packer->to, 4) &&
           !msgpack_pack_str_with_body(&packer->to, "_", 1) &&
           pack_object(packer, code, depth) && pack_object(packer, shape, depth) &&
           pack_bytes(packer, bytes);
}

/* The class that an extension type has in Python's msgpack package, or NULL. If nothing
 * has imported that package, there is none. In a tree, an ExtType is a tuple. */
static const char *ext_class(PyObject *object, bool tree) {
    static const char *const names[] = {"ExtType", "Timestamp"};
    OWNED PyObject *name = PyUnicode_FromString("msgpack");
    OWNED PyObject *module = name ? PyImport_GetModule(name) : NULL;
    const char *found = NULL;
    for (size_t i = tree; module && !found && i < 2; i++) {
        OWNED PyObject *type = PyObject_GetAttrString(module, names[i]);
        if (type && PyObject_IsInstance(object, type) == 1)
            found = names[i];
        PyErr_Clear();
    }
    return found;
}

static bool pack_ext(Packer *packer, PyObject *object, bool timestamp) {
    OWNED PyObject *code =
        timestamp ? PyLong_FromLong(-1) : PyObject_GetAttrString(object, "code");
    OWNED PyObject *data = timestamp ? PyObject_CallMethod(object, "to_bytes", NULL)
                                     : PyObject_GetAttrString(object, "data");
    AT_END(PyBuffer_Release) Py_buffer view = {0};
    if (!code || !data || take_bytes(data, &view))
        return false;
    int over;
    long number = PyLong_AsLongAndOverflow(code, &over);
    if (!PyErr_Occurred() && (over || number < (timestamp ? -1 : 0) || number > 127))
        PyErr_Format(PyExc_ValueError, "ExtType of code %S (expected 0 to 127)", code);
    return !PyErr_Occurred() && !msgpack_pack_ext_with_body(&packer->to, view.buf,
                                    (size_t)view.len, (int8_t)number);
}

/* False with an exception, or if out of memory. */
static bool pack_object(Packer *packer, PyObject *object, int depth) {
    msgpack_packer *to = &packer->to;
    Py_ssize_t size;
    const char *ext;
    if (depth > MAX_DEPTH) {
        PyErr_Format(PyExc_ValueError, "nested more than %d levels", MAX_DEPTH);
        return false;
    }
    if (object == Py_None)
        return !msgpack_pack_nil(to);
    if (object == Py_True)
        return !msgpack_pack_true(to);
    if (object == Py_False)
        return !msgpack_pack_false(to);
    if (PyLong_Check(object))
        return pack_number(to, object);
    if (PyFloat_Check(object))
        return !msgpack_pack_double(to, PyFloat_AsDouble(object));
    if (PyUnicode_Check(object)) {
        const char *text = take_utf8(object, &size);
        return text && !msgpack_pack_str_with_body(to, text, (size_t)size);
    }
    if (PyBytes_Check(object) || PyByteArray_Check(object) ||
        PyMemoryView_Check(object))
        return pack_bytes(packer, object);
    /* ExtType is a subclass of a 2-tuple; for all other objects, skip the lookup. */
    if (PyList_Check(object) || PyTuple_CheckExact(object) ||
        (PyTuple_Check(object) && PyTuple_Size(object) != 2))
        return pack_items(packer, object, depth + 1);
    if (PyDict_Check(object))
        return pack_map(packer, object, depth + 1);
    if (packer->tree && !PyTuple_Check(object) && load_numpy(packer->state) &&
        PyObject_TypeCheck(object, (PyTypeObject *)packer->state->ndarray))
        return pack_array(packer, object, depth + 1);
    if (!PyErr_Occurred() && (ext = ext_class(object, packer->tree)) != NULL)
        return pack_ext(packer, object, *ext == 'T');
    if (!PyErr_Occurred() && PyTuple_Check(object)) /* of a subclass */
        return pack_items(packer, object, depth + 1);
    if (!PyErr_Occurred())
        PyErr_Format(
            PyExc_TypeError, "msgpack has no form of %R", (PyObject *)Py_TYPE(object));
    return false;
}

PyObject *pack(State *state, PyObject *object, bool tree) {
    Packer packer;
    PyObject *out = NULL;
    memset(&packer, 0, sizeof packer);
    packer.state = state;
    packer.tree = tree;
    msgpack_packer_init(&packer.to, &packer.bytes, msgpack_sbuffer_write);
    if (pack_object(&packer, object, 0))
        out =
            PyBytes_FromStringAndSize(packer.bytes.data, (Py_ssize_t)packer.bytes.size);
    else if (!PyErr_Occurred())
        PyErr_NoMemory();
    msgpack_sbuffer_destroy(&packer.bytes);
    return out;
}

static PyObject *unpack_array(State *state, const msgpack_object *object) {
    AT_END(bags_buffer_free) bags_buffer scratch = {0};
    bags_value value;
    bags_error err;
    return bags_tree_array(object, &scratch, &value, &err)
               ? raise_error(state, &err, NULL)
               : new_array(state, NULL, &value, false, false);
}

static PyObject *unpack_map(State *state, const msgpack_object *object, bool tree) {
    PyObject *out = PyDict_New();
    for (uint32_t i = 0; out && i < object->via.map.size; i++) {
        const msgpack_object_kv *pair = &object->via.map.ptr[i];
        if (pair->key.type == MSGPACK_OBJECT_ARRAY ||
            pair->key.type == MSGPACK_OBJECT_MAP) {
            PyErr_SetString(PyExc_ValueError,
                "msgpack with an array or a map as a key cannot become a dict");
            Py_CLEAR(out);
            break;
        }
        OWNED PyObject *key = unpack(state, &pair->key, tree);
        OWNED PyObject *value = key ? unpack(state, &pair->val, tree) : NULL;
        if (!value || PyDict_SetItem(out, key, value))
            Py_CLEAR(out);
    }
    return out;
}

static PyObject *unpack_text(const char *text, size_t size) {
    size_t bad;
    PyObject *out = PyUnicode_DecodeUTF8(text, (Py_ssize_t)size, NULL);
    if (!out && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) &&
        !bags_utf8_valid(text, size, &bad)) {
        char message[80];
        (void)snprintf(message, sizeof message,
            "invalid UTF-8 (byte 0x%02x at offset %zu)", (unsigned char)text[bad], bad);
        PyErr_SetString(PyExc_ValueError, message);
    }
    return out;
}

PyObject *unpack(State *state, const void *from, bool tree) {
    const msgpack_object *object = (const msgpack_object *)from;
    OWNED PyObject *module = NULL;
    PyObject *out = NULL;
    switch (object->type) {
    case MSGPACK_OBJECT_NIL:
        Py_RETURN_NONE;
    case MSGPACK_OBJECT_BOOLEAN:
        return PyBool_FromLong(object->via.boolean);
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        return PyLong_FromUnsignedLongLong(object->via.u64);
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        return PyLong_FromLongLong(object->via.i64);
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        return PyFloat_FromDouble(object->via.f64);
    case MSGPACK_OBJECT_STR:
        return unpack_text(object->via.str.ptr, object->via.str.size);
    case MSGPACK_OBJECT_BIN:
        return PyBytes_FromStringAndSize(
            object->via.bin.ptr, (Py_ssize_t)object->via.bin.size);
    case MSGPACK_OBJECT_MAP:
        return unpack_map(state, object, tree);
    case MSGPACK_OBJECT_ARRAY:
        if (tree && bags_tree_is_array(object))
            return unpack_array(state, object);
        out = PyList_New((Py_ssize_t)object->via.array.size);
        for (uint32_t i = 0; out && i < object->via.array.size; i++) {
            PyObject *item = unpack(state, &object->via.array.ptr[i], tree);
            if (!item || PyList_SetItem(out, (Py_ssize_t)i, item))
                Py_CLEAR(out);
        }
        return out;
    case MSGPACK_OBJECT_EXT: /* uses Python's msgpack package, if it is installed */
        module = PyImport_ImportModule("msgpack");
        if (module && object->via.ext.type == -1) {
            OWNED PyObject *type = PyObject_GetAttrString(module, "Timestamp");
            return type ? PyObject_CallMethod(type, "from_bytes", "y#",
                              object->via.ext.ptr, (Py_ssize_t)object->via.ext.size)
                        : NULL;
        }
        return module ? PyObject_CallMethod(module, "ExtType", "iy#",
                            (int)object->via.ext.type, object->via.ext.ptr,
                            (Py_ssize_t)object->via.ext.size)
                      : NULL;
    }
    PyErr_SetString(PyExc_ValueError, "msgpack of an unknown type");
    return NULL;
}

#else

/* The registry has no codec for these, either. */
PyObject *pack(State *state, PyObject *object, bool tree) {
    (void)state, (void)object, (void)tree;
    PyErr_SetString(
        PyExc_TypeError, "this build has no msgpack: msgpack-c was missing");
    return NULL;
}

PyObject *unpack(State *state, const void *object, bool tree) {
    return pack(state, (PyObject *)(uintptr_t)object, tree);
}

#endif
