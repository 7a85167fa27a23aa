/* reader.c - DatasetReader: datapoints as dicts, columns. */
#include "core.h"

typedef struct Reader {
    Opened base;
    Field *fields;
    size_t count;
    int codecs; /* they were omitted, None, or a mapping */
} Reader;

enum { OWN, RAW, MAPPED };

/* ---- opening ---- */

static int reader_fields(Reader *reader, PyObject *codecs) {
    size_t count;
    const bags_field *of = bags_reader_fields(reader->base.source->reader, &count);
    reader->fields = (Field *)PyMem_Calloc(count + 1, sizeof *reader->fields);
    if (!reader->fields) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        reader->count = i + 1;
        if (field_init(reader->base.state, &reader->fields[i], of[i].name, of[i].type,
                codecs, true))
            return -1;
    }
    return 0;
}

static int reader_open(
    Reader *reader, PyObject *path, PyObject *from, bags_reader_options *options) {
    PyObject *name;
    bags_error err;
    bags_reader *opened = NULL;
    if (!PyUnicode_FSConverter(path, &name))
        return -1;
    const char *text = PyBytes_AsString(name);
    PyObject *storage = open_storage(reader->base.state, text, from, &options->env.io);
    if (storage) {
        WITHOUT_GIL(opened = bags_reader_open(text, options, &err));
        if (!opened)
            raise_error(reader->base.state, &err, path);
    }
    Py_DECREF(name);
    reader->base.source = opened ? new_source(reader->base.state, path) : NULL;
    if (reader->base.source) {
        reader->base.source->reader = opened;
        reader->base.source->storage = storage;
        return 0;
    }
    bags_reader_close(opened);
    Py_XDECREF(storage);
    return -1;
}

static int reader_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"directory", "decoders", "cache_index", "shard_start",
        "shard_step", "no_mmap", "unfinished", "allow_gaps", "verify_checksums",
        "no_read_ahead", "max_files", "storage", "shard_stop", NULL};
    Reader *reader = (Reader *)self;
    PyObject *path, *codecs = NULL, *from = Py_None;
    int cache = 1, no_mmap = 0, gaps = 0, checks = 0, no_ahead = 0;
    uint64_t start = 0, step = 1, stop = 0;
    uint64_t files = 0;
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OpO&O&$pO&pppO&OO&", words, &path,
            &codecs, &cache, number_converter, &start, number_converter, &step,
            &no_mmap, unfinished_converter, &options.unfinished, &gaps, &checks,
            &no_ahead, number_converter, &files, &from, number_converter, &stop))
        return -1;
    if (reader->fields) {
        PyErr_SetString(PyExc_TypeError, "__init__ was called before");
        return -1;
    }
    if (stop) /* the name of C */
        step = stop;
    if (start >= step) {
        PyErr_Format(PyExc_ValueError, "shard_start=%llu is not below shard_step=%llu",
            (unsigned long long)start, (unsigned long long)step);
        return -1;
    }
    options.shard_start = start;
    options.shard_stop = step;
    options.no_mmap = no_mmap;
    options.cache_index = no_mmap && cache;
    options.allow_gaps = gaps;
    options.verify_checksums = checks;
    options.no_read_ahead = no_ahead;
    options.max_files = (size_t)files;
    reader->base.state = state_of(Py_TYPE(self));
    options.registry = reader->base.state->registry;
    reader->codecs = !codecs ? OWN : codecs == Py_None ? RAW : MAPPED;
    if (reader_open(reader, path, from, &options) || reader_fields(reader, codecs))
        return -1;
    reader->base.path = Py_NewRef(path);
    reader->base.args = pickled_path(path, from);
    reader->base.kwargs = Py_BuildValue("{sisKsKsisssisisisKsO}", "cache_index", cache,
        "shard_start", start, "shard_step", step, "no_mmap", no_mmap, "unfinished",
        unfinished_names[options.unfinished], "allow_gaps", gaps, "verify_checksums",
        checks, "no_read_ahead", no_ahead, "max_files", files, "storage", from);
    return reader->base.args && reader->base.kwargs ? 0 : -1;
}

Source *reader_source_of(State *state, PyObject *reader) {
    if (PyObject_TypeCheck(reader, state->reader))
        return source_of(reader);
    PyErr_Format(PyExc_TypeError, "a DatasetReader is required, not %R",
        (PyObject *)Py_TYPE(reader));
    return NULL;
}

static Py_ssize_t reader_len(PyObject *self) {
    Source *source = ((Opened *)self)->source;
    return source ? (Py_ssize_t)bags_reader_length(source->reader) : closed_error(self);
}

static bool reader_field(Reader *reader, PyObject *name, size_t *field) {
    Py_ssize_t size;
    const char *text =
        PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &size) : NULL;
    bags_error err;
    if (!text) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_TypeError, "the name of a field must be a str, not %R",
                (PyObject *)Py_TYPE(name));
        return false;
    }
    if (strlen(text) != (size_t)size) {
        PyErr_Format(PyExc_KeyError, "no field %R", name);
        return false;
    }
    if (!bags_reader_field(reader->base.source->reader, text, field, &err))
        return true;
    raise_error(reader->base.state, &err, NULL);
    return false;
}

/* ---- datapoints ---- */

/* The values of slot i of a row. list: all of them; otherwise the only one. */
static PyObject *slot_value(
    Source *source, Field *field, Row *row, size_t slot, bool list) {
    if (!list)
        return decode(source->state, field, bags_row_bytes(&row->row, slot, 0),
            (PyObject *)source, row, slot, 0);
    size_t count = bags_row_length(&row->row, slot);
    PyObject *out = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; out && i < count; i++) {
        PyObject *item = decode(source->state, field,
            bags_row_bytes(&row->row, slot, i), (PyObject *)source, row, slot, i);
        if (!item || PyList_SetItem(out, (Py_ssize_t)i, item))
            Py_CLEAR(out);
    }
    return out;
}

/* Read a datapoint. selects NULL: all fields. Nobody else uses the row, also if a
 * decoder reads from the same reader. */
static PyObject *read_datapoint(Reader *reader, Source *source, uint64_t index,
    const bags_select *selects, size_t count) {
    Row *row = take_row(source);
    PyObject *out = row ? PyDict_New() : NULL;
    bags_error err;
    bags_code code = BAGS_OK;
    if (out) {
        WITHOUT_GIL(code = bags_reader_get(
                        source->reader, index, selects, count, &row->row, &err));
    }
    if (code) {
        raise_error(source->state, &err, source->path);
        Py_CLEAR(out);
    }
    for (size_t i = 0; out && i < (selects ? count : reader->count); i++) {
        Field *field = &reader->fields[selects ? selects[i].field : i];
        PyObject *value = slot_value(source, field, row, i, field->sequence);
        if (!value || PyDict_SetItem(out, field->name, value))
            Py_CLEAR(out);
        Py_XDECREF(value);
    }
    if (row)
        give_row(source, row);
    return out;
}

/* An attribute of a range or slice; None is `missing`. */
static bool range_part(
    PyObject *range, const char *name, uint64_t missing, uint64_t *out) {
    PyObject *part = PyObject_GetAttrString(range, name);
    if (!part)
        return false;
    *out = missing;
    if (part != Py_None) {
        Py_ssize_t number = PyNumber_AsSsize_t(part, PyExc_OverflowError);
        if (number < 0 && !PyErr_Occurred())
            PyErr_Format(
                PyExc_ValueError, "%R: negative numbers are not allowed here", range);
        *out = (uint64_t)number;
    }
    Py_DECREF(part);
    return !PyErr_Occurred();
}

/* What a mask says about a field: 1: select it, 0: leave it out, -1: an exception. */
static int mask_select(
    Reader *reader, size_t number, PyObject *mask, bags_select *select) {
    uint64_t start, stop, step;
    *select = bags_whole(number);
    if (mask == Py_True)
        return 1;
    if (mask == Py_False || mask == Py_None)
        return 0;
    if (!(PySlice_Check(mask) || PyObject_TypeCheck(mask, &PyRange_Type)) ||
        !reader->fields[number].sequence) {
        PyErr_Format(PyExc_TypeError,
            "field \"%s\": the mask of a %s must be True or False%s, not %R",
            reader->fields[number].name_utf8,
            reader->fields[number].sequence ? "sequence" : "plain field",
            reader->fields[number].sequence ? ", a range or a slice" : "", mask);
        return -1;
    }
    if (!range_part(mask, "start", 0, &start) ||
        !range_part(mask, "stop", UINT64_MAX, &stop) ||
        !range_part(mask, "step", 1, &step))
        return -1;
    *select = bags_slice(number, start, stop < start ? start : stop, step ? step : 1);
    return 1;
}

/* A mask: a dict of fields and what to read of them, or a sequence of names. Returns
 * the number of selections, or -1. */
static Py_ssize_t mask_selects(Reader *reader, PyObject *mask, bags_select *selects) {
    Py_ssize_t count = PyObject_Size(mask), used = 0;
    bool map = PyDict_Check(mask);
    if (!map && !PyTuple_Check(mask) && !PyList_Check(mask)) {
        PyErr_Format(PyExc_TypeError,
            "a mask must be a dict of fields, or a tuple of their names, not %R",
            (PyObject *)Py_TYPE(mask));
        return -1;
    }
    PyObject *names = map ? PyMapping_Keys(mask) : Py_NewRef(mask);
    for (Py_ssize_t i = 0; names && i < count; i++) {
        size_t number;
        PyObject *name = PySequence_GetItem(names, i);
        PyObject *of = !name ? NULL
                       : map ? PyObject_GetItem(mask, name)
                             : Py_NewRef(Py_True);
        int chosen = -1;
        if (of && reader_field(reader, name, &number)) {
            for (Py_ssize_t j = 0; chosen < 0 && j < used; j++)
                if (selects[j].field == number) /* listed twice */
                    chosen = 0;
            if (chosen < 0) {
                chosen = mask_select(reader, number, of, &selects[used]);
                /* The result of a dict is in the order of the fields. */
                for (Py_ssize_t j = used; map && chosen > 0 && j > 0; j--) {
                    if (selects[j - 1].field < selects[j].field)
                        break;
                    bags_select other = selects[j];
                    selects[j] = selects[j - 1];
                    selects[j - 1] = other;
                }
            }
        }
        Py_XDECREF(name);
        Py_XDECREF(of);
        if (chosen < 0)
            used = -1;
        else
            used += chosen;
        if (used < 0)
            break;
    }
    if (!names)
        used = -1;
    Py_XDECREF(names);
    return used;
}

/* The values of a field in datapoints start .. stop: of a plain one, with one call. */
static PyObject *read_values(
    Source *source, Field *field, size_t number, uint64_t start, uint64_t stop) {
    bags_select whole = bags_whole(number);
    Row *row = take_row(source);
    PyObject *out =
        row ? PyList_New(field->sequence ? (Py_ssize_t)(stop - start) : 0) : NULL;
    bags_error err;
    bags_code code = BAGS_OK;
    if (out && !field->sequence) {
        WITHOUT_GIL(code = bags_reader_get_range(
                        source->reader, start, stop, number, &row->row, &err));
        Py_DECREF(out);
        out = code ? NULL : slot_value(source, field, row, 0, true);
    }
    for (uint64_t i = start; out && field->sequence && i < stop; i++) {
        WITHOUT_GIL(
            code = bags_reader_get(source->reader, i, &whole, 1, &row->row, &err));
        PyObject *list = code ? NULL : slot_value(source, field, row, 0, true);
        if (!list || PyList_SetItem(out, (Py_ssize_t)(i - start), list))
            Py_CLEAR(out);
    }
    if (code)
        raise_error(source->state, &err, source->path);
    if (row)
        give_row(source, row);
    return out;
}

/* A slice, clamped as of a list, or a range, which must be inside. */
static bool rows_of(
    Source *source, PyObject *rows, Py_ssize_t *start, Py_ssize_t *stop) {
    Py_ssize_t length = (Py_ssize_t)bags_reader_length(source->reader), step = 1;
    if (PySlice_Check(rows)) {
        if (PySlice_Unpack(rows, start, stop, &step))
            return false;
        PySlice_AdjustIndices(length, start, stop, step);
    } else if (PySequence_Size(rows) > 0) {
        PyObject *first = PySequence_GetItem(rows, 0);
        PyObject *last = first ? PySequence_GetItem(rows, -1) : NULL;
        *start = last ? PyNumber_AsSsize_t(first, NULL) : -1;
        *stop = last ? PyNumber_AsSsize_t(last, NULL) + 1 : -1;
        if (last && PySequence_Size(rows) != *stop - *start)
            step = 2;
        Py_XDECREF(first);
        Py_XDECREF(last);
        if (!PyErr_Occurred() && (*start < 0 || *stop > length))
            PyErr_Format(PyExc_IndexError, "%S: %S out of range (length %zd)",
                source->path, rows, length);
    } else {
        *start = *stop = 0;
    }
    if (!PyErr_Occurred() && step != 1)
        PyErr_Format(
            PyExc_ValueError, "%S: %S has another step than 1", source->path, rows);
    if (*stop < *start)
        *stop = *start;
    return !PyErr_Occurred();
}

/* The fields of several datapoints: {name: [values]}. selects NULL: all. */
static PyObject *read_rows(Reader *reader, Source *source, PyObject *rows,
    const bags_select *selects, size_t count) {
    Py_ssize_t start, stop;
    PyObject *out = rows_of(source, rows, &start, &stop) ? PyDict_New() : NULL;
    for (size_t i = 0; out && i < (selects ? count : reader->count); i++) {
        size_t number = selects ? selects[i].field : i;
        Field *field = &reader->fields[number];
        PyObject *values = NULL;
        if (selects && selects[i].slice)
            PyErr_Format(PyExc_TypeError,
                "field \"%s\": of several datapoints, its mask must be True or False",
                field->name_utf8);
        else
            values =
                read_values(source, field, number, (uint64_t)start, (uint64_t)stop);
        if (!values || PyDict_SetItem(out, field->name, values))
            Py_CLEAR(out);
        Py_XDECREF(values);
    }
    return out;
}

/* A datapoint or several, or (selects) parts of them. */
static PyObject *read_any(Reader *reader, Source *source, PyObject *which,
    const bags_select *selects, size_t count) {
    uint64_t index;
    if (PyIndex_Check(which))
        return take_index(source, which, &index)
                   ? read_datapoint(reader, source, index, selects, count)
                   : NULL;
    if (PySlice_Check(which) || PyObject_TypeCheck(which, &PyRange_Type))
        return read_rows(reader, source, which, selects, count);
    PyErr_Format(PyExc_TypeError,
        "the index of a datapoint must be an int, a slice or a range, not %R",
        (PyObject *)Py_TYPE(which));
    return NULL;
}

static PyObject *reader_subscript(PyObject *self, PyObject *key) {
    Reader *reader = (Reader *)self;
    Source *source = source_of(self);
    bags_select few[8], *selects = few;
    PyObject *out = NULL;
    if (!source)
        return NULL;
    if (!PyTuple_Check(key)) {
        out = read_any(reader, source, key, NULL, 0);
    } else if (PyTuple_Size(key) != 2) {
        PyErr_SetString(PyExc_TypeError, "an index and a mask are required");
    } else {
        if (reader->count > 8)
            selects = (bags_select *)PyMem_Calloc(reader->count, sizeof *selects);
        Py_ssize_t count =
            selects ? mask_selects(reader, PyTuple_GetItem(key, 1), selects) : -1;
        if (!selects)
            PyErr_NoMemory();
        if (count >= 0)
            out = read_any(
                reader, source, PyTuple_GetItem(key, 0), selects, (size_t)count);
        if (selects != few)
            PyMem_Free(selects);
    }
    Py_DECREF(source);
    return out;
}

static PyObject *reader_item(PyObject *self, Py_ssize_t index) {
    Source *source = source_of(self);
    PyObject *out =
        source ? read_datapoint((Reader *)self, source, (uint64_t)index, NULL, 0)
               : NULL;
    Py_XDECREF((PyObject *)source);
    return out;
}

static PyObject *reader_items(PyObject *self, PyObject *args) {
    Source *source = source_of(self);
    PyObject *key, *name;
    uint64_t index, count = 0;
    size_t field;
    Row *row = NULL;
    bags_error err;
    if (source && PyArg_ParseTuple(args, "OO", &key, &name) &&
        take_index(source, key, &index) && reader_field((Reader *)self, name, &field) &&
        (row = take_row(source)) != NULL) {
        bags_code code;
        WITHOUT_GIL(code = bags_reader_items(
                        source->reader, index, field, &row->row, &count, &err));
        if (code)
            raise_error(source->state, &err, source->path);
        give_row(source, row);
    }
    Py_XDECREF((PyObject *)source);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(count);
}

static PyObject *reader_values(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"name", "start", "stop", NULL};
    Source *source = source_of(self);
    Py_ssize_t start = 0, stop = PY_SSIZE_T_MAX;
    PyObject *name, *end = Py_None, *out = NULL;
    size_t field;
    if (source &&
        PyArg_ParseTupleAndKeywords(args, kwargs, "O|nO", words, &name, &start, &end) &&
        (end == Py_None ||
            (stop = PyNumber_AsSsize_t(end, PyExc_OverflowError)) != -1 ||
            !PyErr_Occurred()) &&
        reader_field((Reader *)self, name, &field)) {
        PySlice_AdjustIndices(
            (Py_ssize_t)bags_reader_length(source->reader), &start, &stop, 1);
        out = read_values(source, &((Reader *)self)->fields[field], field,
            (uint64_t)start, (uint64_t)(stop < start ? start : stop));
    }
    Py_XDECREF((PyObject *)source);
    return out;
}

static PyObject *reader_column(PyObject *self, PyObject *name) {
    Source *source = source_of(self);
    size_t field;
    PyObject *out = NULL;
    if (source && reader_field((Reader *)self, name, &field))
        out = make_column(source, &((Reader *)self)->fields[field], field);
    Py_XDECREF((PyObject *)source);
    return out;
}

static PyObject *reader_index_of(PyObject *self, PyObject *name) {
    Source *source = source_of(self);
    const bags_io *io;
    size_t field;
    PyObject *path = NULL, *out = NULL;
    if (source && reader_field((Reader *)self, name, &field) &&
        PyUnicode_FSConverter(source->path, &path)) {
        io = storage_io(source->storage);
        out = open_index(source, PyBytes_AsString(path), field, io);
    }
    Py_XDECREF(path);
    Py_XDECREF((PyObject *)source);
    return out;
}

static PyObject *reader_stream(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"requested_schema", NULL};
    Source *source = source_of(self);
    PyObject *requested = Py_None, *out = NULL;
    if (source && PyArg_ParseTupleAndKeywords(args, kwargs, "|O", words, &requested))
        out = make_stream(source, ((Reader *)self)->fields, ((Reader *)self)->count);
    Py_XDECREF((PyObject *)source);
    return out;
}

/* ---- attributes ---- */

static PyObject *reader_spec(PyObject *self, void *unused) {
    (void)unused;
    return fields_spec(((Reader *)self)->fields, ((Reader *)self)->count);
}

static PyObject *reader_info(PyObject *self, void *what) {
    Source *source = source_of(self);
    bags_info info;
    bags_error err;
    bags_code code;
    if (!source)
        return NULL;
    WITHOUT_GIL(code = bags_reader_info(source->reader, &info, NULL, &err));
    if (code)
        raise_error(source->state, &err, source->path);
    Py_DECREF(source);
    return code   ? NULL
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

static PyObject *reader_path(PyObject *self, void *unused) {
    (void)unused;
    PyObject *path = ((Opened *)self)->path;
    return Py_NewRef(path ? path : Py_None);
}

static PyObject *reader_reduce(PyObject *self, PyObject *unused) {
    Reader *reader = (Reader *)self;
    (void)unused;
    if (!reader->base.kwargs)
        return closed_error(self), NULL;
    PyObject *args, *codecs, *out;
    codecs = reader->codecs == RAW ? Py_NewRef(Py_None)
                                   : fields_codecs(reader->fields, reader->count);
    args = !codecs                 ? NULL
           : reader->codecs == OWN ? Py_BuildValue("(O)", reader->base.args)
                                   : Py_BuildValue("(OO)", reader->base.args, codecs);
    out = args ? rebuild(self, (PyObject *)reader->base.state->reader, args,
                     reader->base.kwargs)
               : NULL;
    Py_XDECREF(codecs);
    Py_XDECREF(args);
    return out;
}

static int reader_traverse(PyObject *self, visitproc visit, void *arg) {
    Reader *reader = (Reader *)self;
    Py_VISIT(Py_TYPE(self));
    for (size_t i = 0; i < reader->count; i++)
        if (field_visit(&reader->fields[i], visit, arg))
            return -1;
    return 0;
}

static int reader_clear(PyObject *self) {
    Reader *reader = (Reader *)self;
    Py_CLEAR(reader->base.source);
    for (size_t i = 0; i < reader->count; i++)
        Py_CLEAR(reader->fields[i].given);
    return 0;
}

static void reader_dealloc(PyObject *self) {
    Reader *reader = (Reader *)self;
    PyObject_GC_UnTrack(self);
    reader_clear(self);
    for (size_t i = 0; i < reader->count; i++)
        field_clear(&reader->fields[i]);
    PyMem_Free(reader->fields);
    Py_XDECREF(reader->base.path);
    Py_XDECREF(reader->base.args);
    Py_XDECREF(reader->base.kwargs);
    free_object(self);
}

static PyMethodDef reader_methods[] = {
    {"items", reader_items, METH_VARARGS,
        "items(i, name)\n--\n\n"
        "Number of items of a sequence in datapoint i, without reading them; 1\n"
        "of a plain field."},
    {"values", KEYWORDS(reader_values), METH_VARARGS | METH_KEYWORDS,
        "values(name, start=0, stop=None)\n--\n\n"
        "The values of a field in datapoints start to stop, clamped like a\n"
        "slice, as a list; of a sequence a list of lists."},
    {"column", reader_column, METH_O,
        "column(name)\n--\n\n"
        "A field of all datapoints as one read-only array: see Column."},
    {"index", reader_index_of, METH_O,
        "index(name)\n--\n\n"
        "The index of a field, which build_index has made: an Index."},
    {"__arrow_c_stream__", KEYWORDS(reader_stream), METH_VARARGS | METH_KEYWORDS,
        "__arrow_c_stream__(requested_schema=None)\n--\n\n"
        "The dataset as a stream of Arrow: a batch for each shard."},
    {"close", close_source, METH_NOARGS,
        "close()\n--\n\n"
        "Close it. Views and arrays stay valid; files are released with the\n"
        "last."},
    {"copy", copy_object, METH_NOARGS,
        "copy()\n--\n\nAnother reader of the same dataset."},
    {"__reduce__", reader_reduce, METH_NOARGS, NULL},
    {"__enter__", enter, METH_NOARGS, NULL}, {"__exit__", leave, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef reader_gets[] = {
    {"spec", reader_spec, NULL, "Types of the fields, by name, sorted.", NULL},
    {"size", reader_info, NULL, "Bytes of all Bags.", NULL},
    {"sharded", reader_info, NULL, "True if it is a directory of shards.", (void *)1},
    {"shards", reader_shards, NULL, "Number of shards that are read.", NULL},
    {"path", reader_path, NULL, "The path with which it was opened.", NULL},
    {"closed", is_source_closed, NULL, "True after close().", NULL}, {0}};
static PyType_Slot reader_slots[] = {
    {Py_tp_doc,
        "DatasetReader(directory, decoders=bags.decoders, cache_index=True,\n"
        "              shard_start=0, shard_step=1, *, shard_stop=0, no_mmap=False,\n"
        "              unfinished='refuse', allow_gaps=False, verify_checksums=False,\n"
        "              no_read_ahead=False, max_files=0, storage=None)\n--\n\n"
        "A dataset, sharded or not: r[i] is datapoint i as a dict of values.\n\n"
        "r[i, mask] is a part of it: mask is a dict of field names, each True,\n"
        "False or, for sequences, a range; or a tuple of names. r[2:5], r[2:5,\n"
        "mask]: {name: [values]}. decoders maps types to functions of a blob;\n"
        "None: bytes. Large arrays are read-only and over the map. Threads may\n"
        "share a reader; it can be pickled. The directory may be in a .zip or\n"
        ".tar (pets.zip/train), or a URL (http, https, s3; storage: a dict with\n"
        "key, secret, token, region, endpoint, user, query, ca_file, and cache,\n"
        "a directory that keeps what was read, up to cache_size bytes); or\n"
        "storage is a file system of fsspec.\n"
        "Errors: IndexError, KeyError (no such field, no decoder),\n"
        "FileNotFoundError, DataError (damaged, unfinished, a gap between\n"
        "shards), ValueError (closed)."},
    {Py_tp_init, reader_init}, {Py_tp_dealloc, reader_dealloc},
    {Py_tp_traverse, reader_traverse}, {Py_tp_clear, reader_clear},
    {Py_tp_methods, reader_methods}, {Py_tp_getset, reader_gets},
    {Py_mp_subscript, reader_subscript}, {Py_mp_length, reader_len},
    {Py_sq_item, reader_item}, {Py_sq_length, reader_len}, {0, NULL}};
static PyType_Spec reader_spec_of = {"bags._core.DatasetReader", sizeof(Reader), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, reader_slots};

int add_reader(PyObject *module, State *state) {
    state->reader = add_type(module, &reader_spec_of, true);
    return state->reader ? 0 : -1;
}
