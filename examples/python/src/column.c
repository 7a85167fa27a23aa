/*
 * column.c - Column: one field of the datapoints in some shards, as a single buffer.
 *
 * Nothing is copied if there is only one shard and the blobs are in datapoint order.
 * bags/arrays.py converts the column for NumPy, DLPack and Arrow.
 */
#include "core.h"

#include "blocks.h"

/* ---- the values of a field ---- */

typedef struct Element {
    const char *name; /* the reader keeps this string alive */
    size_t number;    /* the field's index */
    bool sequence;
    char text;   /* variable size: U: text, Z: bytes; 0: elements of dtype */
    bool decode; /* stored values must be converted */
    bool integer, is_signed, big; /* values are integers; stored in big endian */
    size_t stored;                /* bytes of an integer in its blob; 0: any */
    bags_dtype dtype;
    size_t dims, size; /* size: bytes per value; its shape follows the datapoints */
    Py_ssize_t shape[BAGS_MAX_DIMS + 1], strides[BAGS_MAX_DIMS + 1];
} Element;

/* Depends only on the type, not on the reader's decoder. */
static bool element_init(State *state, Element *element, const bags_field *of) {
    AT_END(field_clear) Field field = {0};
    bool good = !field_init(state, &field, of->name, of->type, Py_Ellipsis);
    element->name = of->name;
    element->sequence = field.sequence;
    element->decode = field.how == HOW_COMPRESSED && field.inside != HOW_VALUE;
    How how = element->decode ? field.inside : field.how;
    if (good && !element->decode && !strncmp(of->type, "zstd", 4)) {
        PyErr_Format(PyExc_TypeError, /* a frame may need a dictionary */
            "field \"%s\": a column has no values of type %s; read them one by one",
            of->name, of->type);
        good = false;
    }
    if (how == HOW_ARRAY) {
        element->dtype = field.dtype;
        element->dims = field.dims;
        for (size_t i = 0; i < field.dims; i++)
            element->shape[i + 1] = (Py_ssize_t)field.shape[i];
    } else if (how == HOW_INT) {
        element->dtype = field.is_u64 ? BAGS_DTYPE_UINT64 : BAGS_DTYPE_INT64;
        element->integer = !element->decode;
        element->is_signed = field.is_signed;
        element->stored = field.size;
        element->big = field.big;
        element->decode |= !(field.is_u64 || field.is_signed) || !bags_little_endian();
    } else {
        element->text = how == HOW_UTF8 ? 'U' : 'Z';
    }
    element->size = bags_dtype_size(element->dtype);
    for (size_t i = element->dims; i-- > 0;) {
        element->strides[i + 1] = (Py_ssize_t)element->size;
        element->size *= (size_t)element->shape[i + 1];
    }
    element->strides[0] = (Py_ssize_t)element->size;
    return good;
}

/* ---- the values of some shards ---- */

typedef struct Chunk {
    uint64_t length, items; /* datapoints; values (all items of sequences) */
    const unsigned char *data;
    size_t size;
    bags_buffer memory; /* backs `data`, unless it is mapped */
    bags_buffer ends;   /* for values of variable size: items + 1 offsets */
    bags_buffer lists;  /* for sequences: length + 1 offsets */
} Chunk;

static void chunk_free(Chunk *chunk) {
    bags_buffer_free(&chunk->memory);
    bags_buffer_free(&chunk->ends);
    bags_buffer_free(&chunk->lists);
}

static bags_code put_offset(
    bags_buffer *buffer, uint64_t index, uint64_t value, bags_error *err) {
    bags_code code = bags_buffer_reserve(buffer, (size_t)(index + 1) * 8, err);
    if (!code)
        memcpy(buffer->data + 8 * index, &value, 8);
    return code;
}

static bags_code put_bytes(
    Chunk *chunk, const void *data, size_t size, bags_error *err) {
    bags_code code = bags_buffer_reserve(&chunk->memory, chunk->size + size, err);
    if (!code && size)
        memcpy(chunk->memory.data + chunk->size, data, size);
    chunk->size += code ? 0 : size;
    return code;
}

/* Check that elements have the same size as all others, and that text is UTF-8, as
 * Arrow requires. `item` is UINT64_MAX if the field is plain. */
static bags_code check_value(const bags_reader *reader, const Element *element,
    uint64_t datapoint, uint64_t item, bags_view blob, bags_error *err) {
    size_t bad;
    if (!element->text && blob.size != element->size)
        bags_fail(err, BAGS_ERROR_CORRUPT, "size mismatch (%zu bytes, expected %zu)",
            blob.size, element->size);
    else if (element->text == 'U' && !bags_utf8_valid(blob.data, blob.size, &bad))
        bags_fail(err, BAGS_ERROR_CORRUPT, "invalid UTF-8 (byte 0x%02x at offset %zu)",
            blob.data[bad], bad);
    else
        return BAGS_OK;
    return format_fail_at(
        reader, element->name, datapoint, item, BAGS_ERROR_CORRUPT, err);
}

static bags_code put_value(
    const Element *element, Chunk *chunk, bags_view blob, bags_error *err) {
    if (chunk->items % 256 == 0 && signal_raised_sometimes())
        return bags_fail(err, BAGS_ERROR_IO, "interrupted");
    bags_code code = put_bytes(chunk, blob.data, blob.size, err);
    chunk->items++;
    if (!code && element->text)
        code = put_offset(&chunk->ends, chunk->items, chunk->size, err);
    return code;
}

/* Get an item in the column's form. `number` provides memory for a number; datapoint and
 * place (UINT64_MAX if the field is plain) locate the item in messages. */
static bags_code item_bytes(const bags_reader *reader, const Element *element, Row *row,
    size_t item, uint64_t datapoint, uint64_t place, unsigned char number[8],
    bags_view *out, bags_error *err) {
    bool negative = element->is_signed;
    bags_value value;
    *out = bags_row_bytes(&row->row, 0, item);
    if (!element->decode)
        return BAGS_OK;
    uint64_t bits = 0;
    if (element->integer && out->size <= 8 &&
        (!element->stored || out->size == element->stored)) {
        bits = bags_load_bytes(out->data, out->size, element->big);
    } else {
        bags_code code = bags_row_value(&row->row, 0, item, &row->scratch, &value, err);
        if (code)
            return code;
        out->data = (const unsigned char *)value.data;
        out->size = value.size;
        if (value.kind != BAGS_KIND_INT && value.kind != BAGS_KIND_UINT)
            return BAGS_OK;
        negative = value.kind == BAGS_KIND_INT;
        bits = negative ? (uint64_t)value.sint : value.uint;
    }
    if (element->dtype == BAGS_DTYPE_INT64 && !negative && bits >> 63) {
        bags_fail(err, BAGS_ERROR_VALUE,
            "value out of range for int64 (%llu); the type u64 allows it",
            (unsigned long long)bits);
        return format_fail_at(
            reader, element->name, datapoint, place, BAGS_ERROR_VALUE, err);
    }
    bags_store_bytes(number, element->size, !bags_little_endian(), bits);
    out->data = number;
    out->size = element->size;
    return BAGS_OK;
}

/* Copy one value at a time. */
static bags_code gather(const Source *source, const Element *element,
    const bags_shard *shard, Row *row, Chunk *chunk, bags_error *err) {
    bags_select whole = bags_select_all(element->number);
    uint64_t step = 1, stop = shard->start + shard->length;
    bags_code code = BAGS_OK;
    for (uint64_t i = shard->start; !code && i < stop; i += step) {
        if (element->sequence) {
            code = bags_reader_get(source->reader, i, &whole, 1, &row->row, err);
        } else {
            step = read_step(source, stop - i);
            code = bags_reader_get_range(
                source->reader, i, i + step, element->number, &row->row, err);
        }
        for (size_t k = 0; !code && k < bags_row_length(&row->row, 0); k++) {
            uint64_t datapoint = element->sequence ? i : i + k;
            uint64_t place = element->sequence ? k : UINT64_MAX;
            unsigned char number[8];
            bags_view blob;
            code = item_bytes(
                source->reader, element, row, k, datapoint, place, number, &blob, err);
            if (!code)
                code =
                    check_value(source->reader, element, datapoint, place, blob, err);
            if (!code)
                code = put_value(element, chunk, blob, err);
        }
        chunk->length += step;
        if (!code && element->sequence)
            code = put_offset(&chunk->lists, chunk->length, chunk->items, err);
    }
    return code;
}

/* Use one shard as it is in the file. */
static bags_code view_shard(const bags_reader *reader, const Element *element,
    size_t shard, Row *row, Chunk *chunk, bags_error *err) {
    bag_blobs blobs;
    uint64_t first = bags_reader_shards(reader, NULL)[shard].start;
    bags_code code =
        bags_reader_blobs(reader, shard, element->number, true, &row->row, &blobs, err);
    if (code)
        return code;
    bool equal = blobs.data != NULL; /* false if the file is not mapped */
    for (size_t i = 0; !element->text && equal && i < blobs.length; i++) {
        equal = bag_blobs_get(&blobs, i).size == element->size;
        if (i % 4096 == 0 && signal_raised_sometimes())
            return bags_fail(err, BAGS_ERROR_IO, "interrupted");
    }
    if (!equal)
        return BAGS_ERROR_RANGE; /* check_value tells which value is wrong */
    chunk->length = chunk->items = blobs.length;
    size_t unit = bags_dtype_size(element->dtype);
    if (unit && (uintptr_t)blobs.data % unit != 0) {
        code = put_bytes(chunk, blobs.data, blobs.size, err);
    } else {
        chunk->data = blobs.data;
        chunk->size = blobs.size;
    }
    for (size_t i = 0; element->text && !code && i < blobs.length; i++) {
        code = check_value(
            reader, element, first + i, UINT64_MAX, bag_blobs_get(&blobs, i), err);
        if (!code)
            code = put_offset(&chunk->ends, i + 1,
                bags_load_bytes(blobs.ends + 8 * i, 8, false), err);
        if (!code && i % 4096 == 0 && signal_raised_sometimes())
            code = bags_fail(err, BAGS_ERROR_IO, "interrupted");
    }
    return code;
}

/* Collect the values of the shards first .. last. */
static bags_code chunk_build(const Source *source, const Element *element, size_t first,
    size_t last, Chunk *chunk, bags_error *err) {
    static const unsigned char nothing[16];
    const bags_reader *reader = source->reader;
    size_t count;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    AT_END(row_clear) Row row = {0};
    memset(chunk, 0, sizeof *chunk);
    bags_code code = put_offset(&chunk->ends, 0, 0, err);
    if (!code)
        code = put_offset(&chunk->lists, 0, 0, err);
    bool view = last == first + 1 && !element->sequence && !element->decode;
    bags_code seen =
        code || !view ? code : view_shard(reader, element, first, &row, chunk, err);
    if (!view || seen == BAGS_ERROR_RANGE)
        for (size_t i = first; !code && i < last; i++)
            code = gather(source, element, &shards[i], &row, chunk, err);
    else
        code = seen;
    if (code)
        chunk_free(chunk);
    else if (!chunk->data)
        chunk->data = chunk->memory.data ? chunk->memory.data : nothing;
    return code;
}

PyObject *integer_items(
    Source *source, const bags_select *select, uint64_t index, Row *row) {
    size_t fields;
    const bags_field *of = &bags_reader_fields(source->reader, &fields)[select->field];
    uint64_t count = bags_row_length(&row->row, 0);
    bags_value value = bags_array(BAGS_DTYPE_INT64, 1, &count, NULL);
    AT_END(bags_buffer_free) bags_buffer data = {0};
    Element element = {0};
    bags_error err;
    bags_code code;
    if (!element_init(source->state, &element, of))
        return NULL;
    code = bags_buffer_reserve(&data, value.size + 1, &err);
    for (size_t i = 0; !code && i < count; i++) {
        bags_view number;
        code = item_bytes(source->reader, &element, row, i, index,
            select->start + i * (select->step ? select->step : 1), data.data + 8 * i,
            &number, &err);
    }
    value.data = data.data;
    return call_failed(source->state, code, &err, source->path)
               ? NULL
               : new_array(source->state, NULL, &value, false, false);
}

/* ---- Column ---- */

typedef struct Column {
    PyObject_HEAD Source *source;
    Element element;
    Chunk chunk;
} Column;

/* _core.Column(source, field, start, stop): the shards start .. stop, or all shards if
 * they are omitted. */
static int column_init(PyObject *self, PyObject *args, PyObject *unused) {
    Column *column = (Column *)self;
    State *state = state_of(Py_TYPE(self));
    PyObject *object;
    Py_ssize_t number, start = 0, stop = PY_SSIZE_T_MAX;
    size_t count, shards;
    bags_error err;
    bags_code code;
    (void)unused;
    if (!PyArg_ParseTuple(
            args, "O!n|nn", state->source, &object, &number, &start, &stop))
        return -1;
    Source *source = (Source *)object;
    const bags_field *fields =
        source->reader ? bags_reader_fields(source->reader, &count) : NULL;
    if (!fields || column->source || number < 0 || (size_t)number >= count) {
        PyErr_SetString(PyExc_TypeError, "a column is made by reader.column");
        return -1;
    }
    column->source = (Source *)Py_NewRef(object);
    column->element.number = (size_t)number;
    if (!element_init(state, &column->element, &fields[number]))
        return -1;
    bags_reader_shards(source->reader, &shards);
    PySlice_AdjustIndices((Py_ssize_t)shards, &start, &stop, 1);
    WITHOUT_GIL(code = chunk_build(source, &column->element, (size_t)start,
                    (size_t)stop, &column->chunk, &err));
    if (call_failed(state, code, &err, source->path))
        return -1;
    column->element.shape[0] = (Py_ssize_t)column->chunk.items;
    return 0;
}

static int column_buffer(PyObject *self, Py_buffer *view, int flags) {
    static const char *const formats[] = {
        "", "?", "B", "H", "I", "Q", "b", "h", "i", "q", "e", "f", "d", "Zf", "Zd"};
    Element *element = &((Column *)self)->element;
    const Chunk *chunk = &((Column *)self)->chunk;
    bool nd = (flags & PyBUF_ND) != 0,
         strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
    view->obj = NULL;
    if (element->text || element->dims == BAGS_MAX_DIMS || !chunk->data) {
        PyErr_Format(PyExc_BufferError,
            "field \"%s\": its values are not one array, since their sizes differ; use "
            "reader.values or Arrow",
            element->name ? element->name : "");
        return -1;
    }
    if (flags & PyBUF_WRITABLE) {
        PyErr_SetString(PyExc_BufferError, "a column is read-only");
        return -1;
    }
    view->buf = (void *)(uintptr_t)chunk->data;
    view->len = (Py_ssize_t)chunk->size;
    view->itemsize = (Py_ssize_t)bags_dtype_size(element->dtype);
    view->readonly = 1;
    view->ndim = nd ? (int)element->dims + 1 : 1;
    view->format =
        flags & PyBUF_FORMAT ? (char *)(uintptr_t)formats[element->dtype] : NULL;
    view->shape = nd ? element->shape : NULL;
    view->strides = strides ? element->strides : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    view->obj = Py_NewRef(self);
    return 0;
}

/* For Arrow: (name, format of the leaf, shape of a value, is it a sequence, datapoint
 * count, value count, and the buffers for list ends, text ends and data). A complex
 * number is a pair. */
static PyObject *column_parts(PyObject *self, void *unused) {
    static const char leaves[] = "\0CCSILcsilefgfg";
    const Element *element = &((Column *)self)->element;
    const Chunk *chunk = &((Column *)self)->chunk;
    State *state = state_of(Py_TYPE(self));
    (void)unused;
    if (!chunk->data)
        return PyErr_SetString(PyExc_ValueError, "not opened"), NULL;
    char leaf[2] = {element->text ? element->text : leaves[element->dtype], 0};
    bool pair = element->dtype >= BAGS_DTYPE_COMPLEX64;
    PyObject *shape = PyTuple_New((Py_ssize_t)(element->dims + pair));
    for (size_t i = 0; shape && i < element->dims + pair; i++)
        PyTuple_SetItem(shape, (Py_ssize_t)i,
            PyLong_FromSsize_t(i < element->dims ? element->shape[i + 1] : 2));
    if (!shape || PyErr_Occurred()) {
        Py_XDECREF(shape);
        return NULL;
    }
    return Py_BuildValue("ssNOKKNNN", element->name, leaf, shape,
        element->sequence ? Py_True : Py_False, chunk->length, chunk->items,
        new_blob(state, self, chunk->lists.data, (size_t)(chunk->length + 1) * 8),
        new_blob(state, self, chunk->ends.data, (size_t)(chunk->items + 1) * 8),
        new_blob(state, self, chunk->data, chunk->size));
}

static Py_ssize_t column_len(PyObject *self) {
    return (Py_ssize_t)((Column *)self)->chunk.length;
}

static void column_dealloc(PyObject *self) {
    chunk_free(&((Column *)self)->chunk);
    Py_XDECREF((PyObject *)((Column *)self)->source);
    free_object(self);
}

static PyObject *column_repr(PyObject *self) {
    const Column *column = (Column *)self;
    if (!column->chunk.data)
        return PyUnicode_FromString("<bags.Column, not opened>");
    return PyUnicode_FromFormat("<bags.Column \"%s\" of %R, %zd datapoints>",
        column->element.name, column->source->path, column_len(self));
}

static PyMethodDef column_methods[] = {
    {"__reduce__", no_pickle, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static PyGetSetDef column_gets[] = {{"_parts", column_parts, NULL, NULL, NULL}, {0}};
static PyType_Slot column_slots[] = {{Py_tp_init, column_init},
    {Py_bf_getbuffer, column_buffer}, {Py_tp_repr, column_repr},
    {Py_tp_dealloc, column_dealloc}, {Py_tp_methods, column_methods},
    {Py_tp_getset, column_gets}, {Py_sq_length, column_len}, {0, NULL}};
PyType_Spec column_spec = {"bags._core.Column", sizeof(Column), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, column_slots};
