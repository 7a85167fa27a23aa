/* reader.c - DatasetReader: datapoints as dicts, columns. */
#include "core.h"

/* ---- opening ---- */

/* By `choose`, a function of a list of names and types that adds the codec of each. */
static bool reader_fields(Opened *reader, PyObject *choose) {
    size_t count;
    const bags_field *of = bags_reader_fields(reader->source->reader, &count);
    OWNED PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *pair = Py_BuildValue("ss", of[i].name, of[i].type);
        if (!pair || PyList_SetItem(list, (Py_ssize_t)i, pair))
            Py_CLEAR(list);
    }
    OWNED PyObject *chosen =
        list ? PyObject_CallFunctionObjArgs(choose, list, NULL) : NULL;
    return chosen && take_fields(&reader->base, reader->source->path, chosen) &&
           reader->base.count == count;
}

static bool open_dataset(
    Source *source, const char *path, const void *options, bags_error *err) {
    source->reader = bags_reader_open(path, (const bags_reader_options *)options, err);
    return source->reader != NULL;
}

/* _core.DatasetReader(path, choose, storage, options) */
static int reader_init(PyObject *self, PyObject *args, PyObject *unused) {
    Opened *reader = (Opened *)self;
    PyObject *path, *choose, *storage, *named;
    bags_reader_options options;
    (void)unused;
    if (!PyArg_ParseTuple(args, "OOOO", &path, &choose, &storage, &named) ||
        !begin_init(self) || !take_struct(&options, sizeof options, named))
        return -1;
    options.cache_index &= options.no_mmap;
    options.registry = reader->base.state->registry;
    reader->source = open_source(
        reader->base.state, path, storage, &options.env.io, open_dataset, &options);
    if (!reader->source)
        return -1;
    if (!reader_fields(reader, choose)) {
        Py_CLEAR(reader->source);
        return -1;
    }
    reader->base.path = Py_NewRef(path);
    return 0;
}

Source *reader_source_of(State *state, PyObject *reader) {
    if (PyObject_TypeCheck(reader, state->reader))
        return source_of(reader);
    PyErr_Format(PyExc_TypeError, "a DatasetReader is required, not %R",
        (PyObject *)Py_TYPE(reader));
    return NULL;
}

static bool reader_field(Opened *reader, PyObject *name, size_t *field) {
    Py_ssize_t size;
    const char *text =
        PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &size) : NULL;
    if (text && strlen(text) == (size_t)size &&
        !bags_reader_field(reader->source->reader, text, field, NULL))
        return true;
    PyErr_Clear();
    Py_XDECREF(PyObject_CallMethod((PyObject *)reader, "_refuse", "(O)", name));
    return false;
}

/* ---- datapoints ---- */

static PyObject *slot_item(Source *source, const Field *field, Row *row, size_t slot,
    size_t i, uint64_t index) {
    uint64_t datapoint = index + (field->sequence ? 0 : i);
    PyObject *out = decode(source->state, field, bags_row_bytes(&row->row, slot, i),
        (PyObject *)source, row, slot, i, datapoint);
    if (!out && field->how == HOW_CALL)
        place_error(true, "%S: field \"%s\": datapoint %llu", source->path,
            field->name_utf8, (unsigned long long)datapoint);
    return out;
}

/* Set the items of a list from `at` on: false, and it is released, with an exception. */
static bool slot_list(Source *source, const Field *field, Row *row, size_t slot,
    PyObject *list, uint64_t at, uint64_t index) {
    size_t count = bags_row_length(&row->row, slot);
    for (size_t i = 0; i < count; i++) {
        PyObject *item = i % 16 == 0 && PyErr_CheckSignals()
                             ? NULL
                             : slot_item(source, field, row, slot, i, index);
        if (!item || PyList_SetItem(list, (Py_ssize_t)(at + i), item)) {
            Py_DECREF(list);
            return false;
        }
    }
    return true;
}

/* The values of slot i of a row, from datapoint `index` on. list: all of them; otherwise
 * the only one. */
static PyObject *slot_value(Source *source, const Field *field, Row *row, size_t slot,
    bool list, uint64_t index) {
    if (!list)
        return slot_item(source, field, row, slot, 0, index);
    PyObject *out = PyList_New((Py_ssize_t)bags_row_length(&row->row, slot));
    return out && slot_list(source, field, row, slot, out, 0, index) ? out : NULL;
}

/* Read a datapoint. selects NULL: all fields. Nobody else uses the row, also if a
 * decoder reads from the same reader. */
static PyObject *read_datapoint(Opened *reader, Source *source, uint64_t index,
    const bags_select *selects, size_t count) {
    AT_END(give_row) Row *row = take_row(source);
    bags_error err;
    bags_code code;
    if (!row)
        return NULL;
    WITHOUT_GIL(
        code = bags_reader_get(source->reader, index, selects, count, &row->row, &err));
    if (call_failed(source->state, code, &err, source->path))
        return NULL;
    PyObject *out = PyDict_New();
    for (size_t i = 0; out && i < (selects ? count : reader->base.count); i++) {
        Field *field = &reader->base.fields[selects ? selects[i].field : i];
        OWNED PyObject *value =
            slot_value(source, field, row, i, field->sequence, index);
        if (!value || PyDict_SetItem(out, field->name, value))
            Py_CLEAR(out);
    }
    return out;
}

/* A range or slice as a slice; NULL without an exception: neither. */
static PyObject *as_slice(PyObject *object) {
    if (PySlice_Check(object))
        return Py_NewRef(object);
    if (!PyObject_TypeCheck(object, &PyRange_Type))
        return NULL;
    OWNED PyObject *start = PyObject_GetAttrString(object, "start");
    OWNED PyObject *stop = PyObject_GetAttrString(object, "stop");
    OWNED PyObject *step = PyObject_GetAttrString(object, "step");
    return start && stop && step ? PySlice_New(start, stop, step) : NULL;
}

/* Look a field up in a mask. 1: select it, 0: skip it, -1: an exception. */
static int mask_select(
    Opened *reader, size_t number, PyObject *mask, bags_select *select) {
    Py_ssize_t start, stop, step;
    *select = bags_select_all(number);
    if (mask == Py_True)
        return 1;
    if (mask == Py_False || mask == Py_None)
        return 0;
    const Field *field = &reader->base.fields[number];
    OWNED PyObject *slice = field->sequence ? as_slice(mask) : NULL;
    int code = slice ? PySlice_Unpack(slice, &start, &stop, &step) : -1;
    if (!slice && !PyErr_Occurred())
        PyErr_Format(PyExc_TypeError,
            "the mask of a %s must be True or False%s, not %R of %R",
            field->sequence ? "sequence" : "plain field",
            field->sequence ? ", a range or a slice" : "", mask,
            (PyObject *)Py_TYPE(mask));
    if (!code && (start < 0 || stop < 0 || step < 0)) {
        PyErr_Format(
            PyExc_ValueError, "%R has negative numbers: not a valid mask", mask);
        code = -1;
    }
    if (code)
        place_error(false, "%S: field \"%s\"", reader->base.path, field->name_utf8);
    else
        *select = bags_select_slice(number, (uint64_t)start,
            (uint64_t)(stop < start ? start : stop), (uint64_t)step);
    return code ? -1 : 1;
}

/* A dict of fields and what to read of them, in the order of the fields; returns the number
 * of selections, or -1. */
static Py_ssize_t dict_selects(Opened *reader, PyObject *mask, bags_select *selects) {
    Py_ssize_t used = 0, found = 0;
    for (size_t i = 0; i < reader->base.count; i++) {
        /* Owned: an index in it may run any code, and change the mask. */
        OWNED PyObject *of =
            Py_XNewRef(PyDict_GetItemWithError(mask, reader->base.fields[i].name));
        int chosen = of ? mask_select(reader, i, of, &selects[used]) : 0;
        if (chosen < 0 || PyErr_Occurred())
            return -1;
        found += of != NULL;
        used += chosen;
    }
    if (found != PyDict_Size(mask)) /* a name is unknown */
        Py_XDECREF(PyObject_CallMethod((PyObject *)reader, "_check", "(O)", mask));
    return PyErr_Occurred() ? -1 : used;
}

/* The same for a tuple or list of names. */
static Py_ssize_t list_selects(Opened *reader, PyObject *mask, bags_select *selects) {
    Py_ssize_t count = PySequence_Size(mask), used = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        size_t number;
        OWNED PyObject *name = PySequence_GetItem(mask, i);
        if (!name || !reader_field(reader, name, &number))
            return -1;
        Py_ssize_t same = 0;
        while (same < used && selects[same].field != number)
            same++;
        selects[same] = bags_select_all(number);
        used += same == used;
    }
    return used;
}

static Py_ssize_t mask_selects(Opened *reader, PyObject *mask, bags_select *selects) {
    if (PyDict_Check(mask))
        return dict_selects(reader, mask, selects);
    if (PyTuple_Check(mask) || PyList_Check(mask))
        return list_selects(reader, mask, selects);
    PyErr_Format(PyExc_TypeError,
        "%S: a mask must be a dict of fields, or a tuple of their names, not %R",
        reader->base.path, (PyObject *)Py_TYPE(mask));
    return -1;
}

/* The values of a field in datapoints start .. stop: of a plain one, with one call. */
static PyObject *read_values(
    Source *source, Field *field, size_t number, uint64_t start, uint64_t stop) {
    bags_select whole = bags_select_all(number);
    AT_END(give_row) Row *row = take_row(source);
    bags_error err;
    bags_code code;
    PyObject *out = row ? PyList_New((Py_ssize_t)(stop - start)) : NULL;
    for (uint64_t i = start, next; out && i < stop; i = next) {
        next = i + (field->sequence ? 1 : read_step(source, stop - i));
        WITHOUT_GIL(code = field->sequence ? bags_reader_get(source->reader, i, &whole,
                                                 1, &row->row, &err)
                                           : bags_reader_get_range(source->reader, i,
                                                 next, number, &row->row, &err));
        if (call_failed(source->state, code, &err, source->path)) {
            Py_DECREF(out);
            return NULL;
        }
        if (!field->sequence) {
            if (!slot_list(source, field, row, 0, out, i - start, i))
                return NULL;
            continue;
        }
        PyObject *list = slot_value(source, field, row, 0, true, i);
        if (!list || PyList_SetItem(out, (Py_ssize_t)(i - start), list))
            Py_CLEAR(out);
    }
    return out;
}

static PyObject *reader_subscript(PyObject *self, PyObject *key) {
    Opened *reader = (Opened *)self;
    bool masked = PyTuple_Check(key);
    bags_select few[8], *selects = few;
    PyObject *which = key, *mask = Py_None, *out = NULL;
    Py_ssize_t count = 0;
    uint64_t index;
    if (masked &&
        !PyArg_ParseTuple(key, "OO;reader[...] takes an index, or an index and a mask",
            &which, &mask))
        return NULL;
    if (PySlice_Check(which) || PyObject_TypeCheck(which, &PyRange_Type))
        return PyObject_CallMethod(self, "_rows", masked ? "(OO)" : "(O)", which, mask);
    OWNED Source *source = source_of(self);
    if (!source)
        return NULL;
    if (masked && reader->base.count > 8)
        selects = (bags_select *)PyMem_Calloc(reader->base.count, sizeof *selects);
    if (!selects)
        PyErr_NoMemory();
    else if (masked)
        count = mask_selects(reader, mask, selects);
    if (selects && count >= 0 && take_index(source, which, &index))
        out = read_datapoint(
            reader, source, index, masked ? selects : NULL, (size_t)count);
    if (selects != few)
        PyMem_Free(selects);
    return out;
}

static PyObject *reader_item(PyObject *self, Py_ssize_t index) {
    OWNED Source *source = source_of(self);
    return source ? read_datapoint((Opened *)self, source, (uint64_t)index, NULL, 0)
                  : NULL;
}

static PyObject *reader_items(PyObject *self, PyObject *args) {
    OWNED Source *source = source_of(self);
    PyObject *key, *name;
    uint64_t index, count;
    size_t field;
    bags_error err;
    bags_code code;
    if (!source || !PyArg_ParseTuple(args, "OO:items", &key, &name) ||
        !take_index(source, key, &index) || !reader_field((Opened *)self, name, &field))
        return NULL;
    AT_END(give_row) Row *row = take_row(source);
    if (!row)
        return NULL;
    WITHOUT_GIL(code = bags_reader_items(
                    source->reader, index, field, &row->row, &count, &err));
    return call_failed(source->state, code, &err, source->path)
               ? NULL
               : PyLong_FromUnsignedLongLong(count);
}

/* _values(field, start, stop) */
static PyObject *reader_values(PyObject *self, PyObject *args) {
    OWNED Source *source = source_of(self);
    Opened *reader = (Opened *)self;
    Py_ssize_t field, start, stop;
    if (!source || !PyArg_ParseTuple(args, "nnn", &field, &start, &stop))
        return NULL;
    if (field < 0 || (size_t)field >= reader->base.count || start < 0 || stop < start)
        return PyErr_SetString(PyExc_IndexError, "no field, or no range of datapoints"),
               NULL;
    return read_values(source, &reader->base.fields[field], (size_t)field,
        (uint64_t)start, (uint64_t)stop);
}

static PyObject *reader_number_of(PyObject *self, PyObject *name) {
    OWNED Source *source = source_of(self);
    size_t field;
    return source && reader_field((Opened *)self, name, &field)
               ? PyLong_FromSize_t(field)
               : NULL;
}

/* ---- attributes ---- */

static PyObject *reader_info(PyObject *self, void *what) {
    OWNED Source *source = source_of(self);
    bags_info info;
    bags_error err;
    bags_code code;
    if (!source)
        return NULL;
    WITHOUT_GIL(code = bags_reader_info(source->reader, &info, NULL, &err));
    return call_failed(source->state, code, &err, source->path) ? NULL
           : what ? PyBool_FromLong(info.sharded)
                  : PyLong_FromUnsignedLongLong(info.size);
}

static PyObject *reader_shards(PyObject *self, void *unused) {
    Source *source = ((Opened *)self)->source;
    size_t count;
    (void)unused;
    if (!source)
        return closed_error(self), NULL;
    bags_reader_shards(source->reader, &count);
    return PyLong_FromSize_t(count);
}

static PyObject *reader_source(PyObject *self, void *unused) {
    (void)unused;
    return (PyObject *)source_of(self);
}

static PyMethodDef reader_methods[] = {
    {"items", reader_items, METH_VARARGS,
        "items(i, name)\n--\n\n"
        "Number of items of a sequence in datapoint i, without reading them; 1\n"
        "of a plain field."},
    {"_values", reader_values, METH_VARARGS, NULL},
    {"_field", reader_number_of, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyGetSetDef reader_gets[] = {
    {"size", reader_info, NULL, "Bytes of all Bags.", NULL},
    {"sharded", reader_info, NULL, "True if it is a directory of shards.", (void *)1},
    {"shards", reader_shards, NULL, "Number of shards that are read.", NULL},
    {"_source", reader_source, NULL, NULL, NULL}, {0}};
static PyType_Slot reader_slots[] = {{Py_tp_init, reader_init},
    {Py_tp_methods, reader_methods}, {Py_tp_getset, reader_gets},
    {Py_mp_subscript, reader_subscript}, {Py_sq_item, reader_item}, {0, NULL}};
PyType_Spec reader_spec = {"bags._core.DatasetReader", sizeof(Opened), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, reader_slots};
