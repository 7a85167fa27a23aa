/*
 * column.c - a field of all datapoints as one array: the buffer protocol, DLPack, Arrow.
 *
 * Without a copy if the dataset is not sharded and the blobs are in the order of the
 * datapoints. What is built here needs no GIL until it is given to Python.
 */
#include "core.h"

/* ---- what the values of a field are ---- */

typedef struct Element {
    char *name;
    size_t number; /* of the field */
    bool sequence;
    char text;    /* U: text, Z: bytes, whose sizes differ; 0: elements of dtype */
    bool convert; /* numbers that are not stored as the dtype */
    bool big;
    bags_dtype dtype;
    size_t dims, size; /* size: bytes of a value; its shape follows the datapoints */
    Py_ssize_t shape[BAGS_MAX_DIMS + 1], strides[BAGS_MAX_DIMS + 1];
} Element;

/* By the type, whatever decoder the reader uses. */
static int element_init(
    State *state, Element *element, const Field *of, size_t number) {
    static const bags_dtype ints[] = {0, BAGS_DTYPE_UINT8, BAGS_DTYPE_UINT16, 0,
        BAGS_DTYPE_UINT32, 0, 0, 0, BAGS_DTYPE_UINT64};
    Field field = {0};
    int code = field_init(state, &field, of->name_utf8, of->type, NULL, true);
    memset(element, 0, sizeof *element);
    element->name = strdup(of->name_utf8);
    element->number = number;
    element->sequence = of->sequence;
    if (!element->name && !code) {
        PyErr_NoMemory();
        code = -1;
    }
    if (field.how == HOW_ARRAY) {
        element->dtype = field.dtype;
        element->dims = field.dims;
        for (size_t i = 0; i < field.dims; i++)
            element->shape[i + 1] = (Py_ssize_t)field.shape[i];
    } else if (field.how == HOW_INT) {
        element->dtype = field.is_signed ? BAGS_DTYPE_INT64 : ints[field.size];
        element->convert =
            !element->dtype || (field.big && field.size > 1) || !bags_little_endian();
        if (!element->dtype)
            element->dtype = BAGS_DTYPE_UINT64;
        element->big = field.big;
    } else {
        element->text = field.how == HOW_UTF8 ? 'U' : 'Z';
    }
    element->size = element->convert ? field.size : bags_dtype_size(element->dtype);
    for (size_t i = element->dims; i-- > 0;) {
        element->strides[i + 1] = (Py_ssize_t)element->size;
        element->size *= (size_t)element->shape[i + 1];
    }
    field_clear(&field);
    return code;
}

/* Bytes of a value in a column. */
static size_t element_size(const Element *element) {
    return element->convert ? bags_dtype_size(element->dtype) : element->size;
}

/* ---- the values of some shards ---- */

typedef struct Chunk {
    uint64_t length, items; /* datapoints; values: of sequences, of all together */
    const unsigned char *data;
    size_t size;
    bags_buffer memory; /* of data, unless it is mapped */
    bags_buffer ends;   /* of values whose sizes differ: items + 1 offsets */
    bags_buffer lists;  /* of sequences: length + 1 */
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

static bags_code put_value(
    const Element *element, Chunk *chunk, bags_view blob, bags_error *err) {
    bool good =
        element->text || (element->convert && !element->size)
            ? element->text || blob.size <= 8 || (blob.size == 9 && !blob.data[8])
            : blob.size == element->size;
    if (!good)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "field \"%s\": value %" PRIu64 " has %zu bytes, not %zu", element->name,
            chunk->items, blob.size, element->size);
    bags_code code;
    if (element->convert) {
        unsigned char bytes[8];
        uint64_t number = bags_load(
            blob.data, blob.size > 8 ? 8 : blob.size, element->big && blob.size > 1);
        bags_store(bytes, element_size(element), !bags_little_endian(), number);
        code = put_bytes(chunk, bytes, element_size(element), err);
    } else {
        code = put_bytes(chunk, blob.data, blob.size, err);
    }
    chunk->items++;
    if (!code && element->text)
        code = put_offset(&chunk->ends, chunk->items, chunk->size, err);
    return code;
}

/* Value by value. */
static bags_code gather(const bags_reader *reader, const Element *element,
    const bags_shard *shard, Row *row, Chunk *chunk, bags_error *err) {
    bags_select whole = bags_whole(element->number);
    uint64_t step = element->sequence ? 1 : shard->length;
    bags_code code = BAGS_OK;
    for (uint64_t i = 0; !code && i < shard->length; i += step) {
        if (element->sequence)
            code = bags_reader_get(reader, shard->start + i, &whole, 1, &row->row, err);
        else
            code = bags_reader_get_range(reader, shard->start,
                shard->start + shard->length, element->number, &row->row, err);
        for (size_t k = 0; !code && k < bags_row_length(&row->row, 0); k++)
            code = put_value(element, chunk, bags_row_bytes(&row->row, 0, k), err);
        chunk->length += step;
        if (!code && element->sequence)
            code = put_offset(&chunk->lists, chunk->length, chunk->items, err);
    }
    return code;
}

/* One shard, as it is in the file. */
static bags_code view_shard(const bags_reader *reader, const Element *element,
    size_t shard, Row *row, Chunk *chunk, bags_error *err) {
    bags_column column;
    bags_code code =
        bags_reader_column(reader, shard, element->number, &row->row, &column, err);
    if (code)
        return code;
    if (!element->text && column.length && column.size != column.length * element->size)
        return BAGS_ERROR_RANGE; /* put_value says which */
    if (!element->text && column.length && column.item_size != element->size)
        return BAGS_ERROR_RANGE;
    chunk->length = chunk->items = column.length;
    size_t unit = bags_dtype_size(element->dtype);
    if (bags_row_owns(&row->row, column.data) ||
        (unit && (uintptr_t)column.data % unit != 0)) {
        code = put_bytes(chunk, column.data, (size_t)column.size, err);
    } else {
        chunk->data = column.data;
        chunk->size = (size_t)column.size;
    }
    for (uint64_t i = 0; element->text && !code && i < column.length; i++)
        code = put_offset(&chunk->ends, i + 1,
            column.offsets ? column.offsets[i + 1] - column.offsets[0]
                           : (i + 1) * column.item_size,
            err);
    return code;
}

/* The values of the shards first .. last. */
static bags_code chunk_build(const bags_reader *reader, const Element *element,
    size_t first, size_t last, Chunk *chunk, bags_error *err) {
    static const unsigned char nothing[16];
    size_t count;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    Row row = {0};
    memset(chunk, 0, sizeof *chunk);
    bags_code code = put_offset(&chunk->ends, 0, 0, err);
    if (!code)
        code = put_offset(&chunk->lists, 0, 0, err);
    bool view = last == first + 1 && !element->sequence && !element->convert;
    bags_code seen =
        code || !view ? code : view_shard(reader, element, first, &row, chunk, err);
    if (!view || seen == BAGS_ERROR_RANGE)
        for (size_t i = first; !code && i < last; i++)
            code = gather(reader, element, &shards[i], &row, chunk, err);
    else
        code = seen;
    bags_row_free(&row.row);
    if (code)
        chunk_free(chunk);
    else if (!chunk->data)
        chunk->data = chunk->memory.data ? chunk->memory.data : nothing;
    return code;
}

/* ---- what Arrow and DLPack own ---- */

/* A chunk, and the reader whose map it may be of; freed with the last reference. */
typedef struct Holder {
    size_t references;
    Source *source;
    Chunk chunk;
} Holder;

static Holder *new_holder(Source *source) { /* with the GIL */
    Holder *holder = (Holder *)calloc(1, sizeof *holder);
    if (!holder)
        return NULL;
    holder->references = 1;
    holder->source = (Source *)Py_NewRef((PyObject *)source);
    return holder;
}

static void holder_drop(Holder *holder) { /* with or without the GIL */
    if (__atomic_sub_fetch(&holder->references, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    chunk_free(&holder->chunk);
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_DECREF((PyObject *)holder->source);
    PyGILState_Release(gil);
    free(holder);
}

/* ---- Arrow's C data interface ---- */

struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};
struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

/* A value is a chain of nested types, outermost first: the list of a sequence, fixed
 * lists of its dimensions, a pair for complex numbers, and a leaf. */
static size_t chain_length(const Element *element) {
    return (size_t)element->sequence + element->dims +
           (element->dtype >= BAGS_DTYPE_COMPLEX64) + 1;
}

/* The format of link i; *fixed: items of a fixed list, otherwise 0. */
static void chain_format(
    const Element *element, size_t i, char format[32], int64_t *fixed) {
    static const char leaves[] = "\0CCSILcsilefgfg";
    size_t lists = element->sequence;
    *fixed = 0;
    if (i < lists) {
        strcpy(format, "+L");
    } else if (i + 1 == chain_length(element)) {
        format[0] = element->text ? element->text : leaves[element->dtype];
        format[1] = 0;
    } else {
        *fixed = i - lists < element->dims ? element->shape[i - lists + 1] : 2;
        snprintf(format, 32, "+w:%lld", (long long)*fixed);
    }
}

static void schema_release(struct ArrowSchema *schema) {
    for (int64_t i = 0; i < schema->n_children; i++) {
        if (schema->children[i] && schema->children[i]->release)
            schema->children[i]->release(schema->children[i]);
        free(schema->children[i]);
    }
    free(schema->children);
    free(schema->private_data);
    schema->release = NULL;
}

/* False: out of memory; *schema is then released. */
static bool schema_init(
    struct ArrowSchema *schema, const char *format, const char *name, size_t children) {
    size_t size = strlen(format) + 1;
    memset(schema, 0, sizeof *schema);
    char *text = (char *)malloc(size + strlen(name) + 1);
    schema->children = (struct ArrowSchema **)calloc(children + 1, sizeof(void *));
    schema->private_data = text;
    schema->release = schema_release;
    schema->n_children = (int64_t)children;
    bool good = text && schema->children;
    for (size_t i = 0; good && i < children; i++)
        good = (schema->children[i] =
                       (struct ArrowSchema *)calloc(1, sizeof *schema)) != NULL;
    if (!good) {
        schema->n_children = schema->children ? schema->n_children : 0;
        schema_release(schema);
        return false;
    }
    schema->format = strcpy(text, format);
    schema->name = strcpy(text + size, name);
    return true;
}

static bool element_schema(
    struct ArrowSchema *schema, const Element *element, size_t link) {
    char format[32];
    int64_t fixed;
    bool leaf = link + 1 == chain_length(element);
    chain_format(element, link, format, &fixed);
    if (!schema_init(schema, format, link ? "item" : element->name, leaf ? 0 : 1))
        return false;
    if (leaf || element_schema(schema->children[0], element, link + 1))
        return true;
    schema_release(schema);
    return false;
}

typedef struct ArrayParts {
    const void *buffers[3];
    Holder *holder; /* NULL: of a struct */
} ArrayParts;

static void array_release(struct ArrowArray *array) {
    ArrayParts *parts = (ArrayParts *)array->private_data;
    for (int64_t i = 0; i < array->n_children; i++) {
        if (array->children[i] && array->children[i]->release)
            array->children[i]->release(array->children[i]);
        free(array->children[i]);
    }
    free(array->children);
    if (parts->holder)
        holder_drop(parts->holder);
    free(parts);
    array->release = NULL;
}

static bool array_init(struct ArrowArray *array, Holder *holder, int64_t length,
    size_t buffers, size_t children) {
    memset(array, 0, sizeof *array);
    ArrayParts *parts = (ArrayParts *)calloc(1, sizeof *parts);
    if (!parts)
        return false;
    array->length = length;
    array->n_buffers = (int64_t)buffers;
    array->buffers = parts->buffers;
    array->private_data = parts;
    array->release = array_release;
    array->children = (struct ArrowArray **)calloc(children + 1, sizeof(void *));
    bool good = array->children != NULL;
    array->n_children = good ? (int64_t)children : 0;
    for (size_t i = 0; good && i < children; i++)
        good = (array->children[i] = (struct ArrowArray *)calloc(1, sizeof *array)) !=
               NULL;
    if (!good) {
        array_release(array);
        return false;
    }
    parts->holder = holder;
    if (holder)
        __atomic_add_fetch(&holder->references, 1, __ATOMIC_ACQ_REL);
    return true;
}

static bool element_array(struct ArrowArray *array, const Element *element,
    Holder *holder, size_t link, int64_t length) {
    char format[32];
    int64_t fixed;
    const Chunk *chunk = &holder->chunk;
    bool leaf = link + 1 == chain_length(element),
         list = link < (size_t)element->sequence;
    chain_format(element, link, format, &fixed);
    size_t buffers = leaf ? (element->text ? 3 : 2) : list ? 2 : 1;
    if (!array_init(array, holder, length, buffers, leaf ? 0 : 1))
        return false;
    if (leaf && element->text)
        array->buffers[1] = chunk->ends.data;
    if (leaf)
        array->buffers[buffers - 1] = chunk->data;
    if (list)
        array->buffers[1] = chunk->lists.data;
    int64_t below = list ? (int64_t)chunk->items : length * fixed;
    if (leaf || element_array(array->children[0], element, holder, link + 1, below))
        return true;
    array_release(array);
    return false;
}

static void schema_capsule_free(PyObject *capsule) {
    struct ArrowSchema *schema =
        (struct ArrowSchema *)PyCapsule_GetPointer(capsule, "arrow_schema");
    if (schema->release)
        schema->release(schema);
    free(schema);
}

static void array_capsule_free(PyObject *capsule) {
    struct ArrowArray *array =
        (struct ArrowArray *)PyCapsule_GetPointer(capsule, "arrow_array");
    if (array->release)
        array->release(array);
    free(array);
}

/* A new struct in a capsule, for which `release` is NULL so far. */
static void *capsule_of(
    PyObject **capsule, size_t size, const char *name, PyCapsule_Destructor destroy) {
    void *made = calloc(1, size);
    *capsule = made ? PyCapsule_New(made, name, destroy) : PyErr_NoMemory();
    if (made && !*capsule)
        free(made);
    return *capsule ? made : NULL;
}

/* ---- a stream: a batch for each shard ---- */

typedef struct Stream {
    Source *source;
    Element *elements;
    size_t count, shard;
    bags_error err;
} Stream;

static void stream_free(Stream *stream) {
    for (size_t i = 0; i < stream->count; i++)
        free(stream->elements[i].name);
    free(stream->elements);
    Py_XDECREF((PyObject *)stream->source);
    free(stream);
}

static void stream_release(struct ArrowArrayStream *arrow) {
    PyGILState_STATE gil = PyGILState_Ensure();
    stream_free((Stream *)arrow->private_data);
    PyGILState_Release(gil);
    arrow->release = NULL;
}

static const char *stream_error(struct ArrowArrayStream *arrow) {
    return ((Stream *)arrow->private_data)->err.message;
}

static int stream_schema(struct ArrowArrayStream *arrow, struct ArrowSchema *schema) {
    Stream *stream = (Stream *)arrow->private_data;
    if (!schema_init(schema, "+s", "", stream->count))
        return ENOMEM;
    for (size_t i = 0; i < stream->count; i++) {
        if (!element_schema(schema->children[i], &stream->elements[i], 0)) {
            schema_release(schema);
            return ENOMEM;
        }
    }
    return 0;
}

static int stream_next(struct ArrowArrayStream *arrow, struct ArrowArray *array) {
    Stream *stream = (Stream *)arrow->private_data;
    size_t count;
    const bags_shard *shards = bags_reader_shards(stream->source->reader, &count);
    memset(array, 0, sizeof *array);
    if (stream->shard >= count)
        return 0; /* the end */
    if (!array_init(
            array, NULL, (int64_t)shards[stream->shard].length, 1, stream->count))
        return ENOMEM;
    int error = 0;
    for (size_t i = 0; !error && i < stream->count; i++) {
        const Element *element = &stream->elements[i];
        PyGILState_STATE gil = PyGILState_Ensure();
        Holder *holder = new_holder(stream->source);
        bags_code code = BAGS_ERROR_MEMORY;
        if (holder) {
            WITHOUT_GIL(
                code = chunk_build(stream->source->reader, element, stream->shard,
                    stream->shard + 1, &holder->chunk, &stream->err));
        }
        PyGILState_Release(gil);
        if (code)
            error = code == BAGS_ERROR_MEMORY ? ENOMEM : EIO;
        else if (!element_array(array->children[i], element, holder, 0,
                     (int64_t)holder->chunk.length))
            error = ENOMEM;
        if (holder)
            holder_drop(holder);
    }
    stream->shard++;
    if (error)
        array_release(array);
    return error;
}

static void stream_capsule_free(PyObject *capsule) {
    struct ArrowArrayStream *arrow =
        (struct ArrowArrayStream *)PyCapsule_GetPointer(capsule, "arrow_array_stream");
    if (arrow->release)
        arrow->release(arrow);
    free(arrow);
}

PyObject *make_stream(Source *source, const Field *fields, size_t count) {
    PyObject *capsule;
    struct ArrowArrayStream *arrow = (struct ArrowArrayStream *)capsule_of(
        &capsule, sizeof *arrow, "arrow_array_stream", stream_capsule_free);
    Stream *stream = arrow ? (Stream *)calloc(1, sizeof *stream) : NULL;
    if (stream)
        stream->elements = (Element *)calloc(count + 1, sizeof *stream->elements);
    bool good = stream && stream->elements;
    if (arrow && !good)
        PyErr_NoMemory();
    for (size_t i = 0; good && i < count; i++) {
        stream->count = i + 1;
        good = !element_init(source->state, &stream->elements[i], &fields[i], i);
    }
    if (!good) {
        if (stream)
            stream_free(stream);
        Py_XDECREF(capsule);
        return NULL;
    }
    stream->source = (Source *)Py_NewRef((PyObject *)source);
    arrow->private_data = stream;
    arrow->get_schema = stream_schema;
    arrow->get_next = stream_next;
    arrow->get_last_error = stream_error;
    arrow->release = stream_release;
    return capsule;
}

/* ---- DLPack ---- */

typedef struct DLTensor {
    void *data;
    struct {
        int32_t type, id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManaged { /* before version 1.0 */
    DLTensor tensor;
    void *context;
    void (*deleter)(struct DLManaged *);
} DLManaged;
typedef struct DLVersioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct DLVersioned *);
    uint64_t flags; /* 1: read-only, 2: a copy */
    DLTensor tensor;
} DLVersioned;

typedef struct Tensor {
    DLManaged old;
    DLVersioned versioned;
    Holder *holder;
    void *copy;
    int64_t shape[BAGS_MAX_DIMS + 1];
} Tensor;

static void tensor_free(Tensor *tensor) {
    if (tensor->holder)
        holder_drop(tensor->holder);
    free(tensor->copy);
    free(tensor);
}

static void delete_old(DLManaged *managed) { tensor_free((Tensor *)managed->context); }
static void delete_versioned(DLVersioned *managed) {
    tensor_free((Tensor *)managed->context);
}

/* If nobody took the tensor; whoever does renames the capsule. */
static void tensor_capsule_free(PyObject *capsule) {
    if (PyCapsule_IsValid(capsule, "dltensor"))
        delete_old((DLManaged *)PyCapsule_GetPointer(capsule, "dltensor"));
    else if (PyCapsule_IsValid(capsule, "dltensor_versioned"))
        delete_versioned(
            (DLVersioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned"));
}

/* ---- Column ---- */

typedef struct Column {
    PyObject_HEAD Element element;
    Holder *holder; /* with its chunk */
} Column;

PyObject *make_column(Source *source, const Field *field, size_t number) {
    Column *column = (Column *)new_object(source->state->column);
    size_t count;
    bags_error err;
    bags_code code;
    if (!column || element_init(source->state, &column->element, field, number)) {
        Py_XDECREF((PyObject *)column);
        return NULL;
    }
    Holder *holder = new_holder(source);
    if (!holder) {
        Py_DECREF((PyObject *)column);
        return PyErr_NoMemory();
    }
    bags_reader_shards(source->reader, &count);
    WITHOUT_GIL(code = chunk_build(
                    source->reader, &column->element, 0, count, &holder->chunk, &err));
    column->holder = holder;
    if (code) {
        Py_DECREF((PyObject *)column);
        return raise_error(source->state, &err, source->path);
    }
    column->element.shape[0] = (Py_ssize_t)holder->chunk.length;
    column->element.strides[0] = (Py_ssize_t)element_size(&column->element);
    return (PyObject *)column;
}

/* -1 with an exception if it is not one array. */
static int column_check(const Column *column, PyObject *type) {
    const Element *element = &column->element;
    if (!element->text && !element->sequence && element->dims < BAGS_MAX_DIMS)
        return 0;
    PyErr_Format(type,
        "field \"%s\": its values are not one array, since their sizes differ; use "
        "reader.values or Arrow",
        element->name);
    return -1;
}

static int column_buffer(PyObject *self, Py_buffer *view, int flags) {
    static const char *const formats[] = {
        "", "?", "B", "H", "I", "Q", "b", "h", "i", "q", "e", "f", "d", "Zf", "Zd"};
    Column *column = (Column *)self;
    Element *element = &column->element;
    view->obj = NULL;
    if (column_check(column, PyExc_BufferError))
        return -1;
    if (flags & PyBUF_WRITABLE) {
        PyErr_SetString(PyExc_BufferError, "a column is read-only");
        return -1;
    }
    const Chunk *chunk = &column->holder->chunk;
    bool nd = (flags & PyBUF_ND) != 0,
         strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
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

/* NumPy calls it if there is no buffer, or with a dtype. */
static PyObject *column_array(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"dtype", "copy", NULL};
    PyObject *dtype = Py_None, *copy = Py_None, *out = NULL;
    State *state = state_of(Py_TYPE(self));
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO", words, &dtype, &copy) ||
        column_check((Column *)self, PyExc_TypeError) || !load_numpy(state))
        return NULL;
    PyObject *view = PyMemoryView_FromObject(self);
    if (view)
        out = PyObject_CallFunctionObjArgs(state->asarray, view, dtype, NULL);
    Py_XDECREF(view);
    if (out && PyObject_IsTrue(copy) == 1)
        SET(out, PyObject_CallMethod(out, "copy", NULL));
    return out;
}

/* True if `version` is (1, 0) or later. */
static bool takes_versions(PyObject *version) {
    PyObject *major = version == Py_None ? NULL : PySequence_GetItem(version, 0);
    long number = major ? PyLong_AsLong(major) : 0;
    Py_XDECREF(major);
    return number >= 1;
}

static PyObject *column_dlpack(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"stream", "max_version", "dl_device", "copy", NULL};
    static const uint8_t codes[] = {0, 6, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 2, 5, 5};
    Column *column = (Column *)self;
    const Element *element = &column->element;
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$OOOO", words, &stream, &version, &device, &copy) ||
        column_check(column, PyExc_BufferError))
        return NULL;
    const Chunk *chunk = &column->holder->chunk;
    bool versioned = takes_versions(version);
    if (PyErr_Occurred())
        return NULL;
    /* Before version 1.0 nothing can say that a tensor is read-only. */
    bool copies = copy == Py_True || (!versioned && copy != Py_False);
    if (!versioned && !copies) {
        PyErr_SetString(PyExc_BufferError, "a column is read-only, which DLPack states "
                                           "from version 1.0 on: allow a copy");
        return NULL;
    }
    Tensor *tensor = (Tensor *)calloc(1, sizeof *tensor);
    if (tensor && copies && posix_memalign(&tensor->copy, 64, chunk->size + 1)) {
        free(tensor);
        tensor = NULL;
    }
    if (!tensor)
        return PyErr_NoMemory();
    if (copies) {
        memcpy(tensor->copy, chunk->data, chunk->size);
    } else {
        tensor->holder = column->holder;
        __atomic_add_fetch(&column->holder->references, 1, __ATOMIC_ACQ_REL);
    }
    DLTensor *dl = versioned ? &tensor->versioned.tensor : &tensor->old.tensor;
    dl->data = copies ? tensor->copy : (void *)(uintptr_t)chunk->data;
    dl->device.type = 1; /* memory */
    dl->ndim = (int32_t)element->dims + 1;
    dl->dtype.code = codes[element->dtype];
    dl->dtype.bits = (uint8_t)(8 * bags_dtype_size(element->dtype));
    dl->dtype.lanes = 1;
    dl->shape = tensor->shape;
    for (size_t i = 0; i <= element->dims; i++)
        tensor->shape[i] = element->shape[i];
    tensor->versioned.major = 1;
    tensor->versioned.flags = copies ? 2 : 1;
    tensor->old.context = tensor->versioned.context = tensor;
    tensor->old.deleter = delete_old;
    tensor->versioned.deleter = delete_versioned;
    PyObject *capsule =
        PyCapsule_New(versioned ? (void *)&tensor->versioned : (void *)&tensor->old,
            versioned ? "dltensor_versioned" : "dltensor", tensor_capsule_free);
    if (!capsule)
        tensor_free(tensor);
    return capsule;
}

static PyObject *column_device(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return Py_BuildValue("ii", 1, 0);
}

static PyObject *column_arrow(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *words[] = {"requested_schema", NULL};
    Column *column = (Column *)self;
    PyObject *requested = Py_None, *schema_capsule = NULL, *array_capsule = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O", words, &requested))
        return NULL;
    struct ArrowSchema *schema = (struct ArrowSchema *)capsule_of(
        &schema_capsule, sizeof *schema, "arrow_schema", schema_capsule_free);
    struct ArrowArray *array =
        schema ? (struct ArrowArray *)capsule_of(
                     &array_capsule, sizeof *array, "arrow_array", array_capsule_free)
               : NULL;
    if (array && !(element_schema(schema, &column->element, 0) &&
                     element_array(array, &column->element, column->holder, 0,
                         (int64_t)column->holder->chunk.length)))
        PyErr_NoMemory();
    PyObject *out = array && !PyErr_Occurred()
                        ? PyTuple_Pack(2, schema_capsule, array_capsule)
                        : NULL;
    Py_XDECREF(schema_capsule);
    Py_XDECREF(array_capsule);
    return out;
}

static Py_ssize_t column_len(PyObject *self) {
    return (Py_ssize_t)((Column *)self)->holder->chunk.length;
}

static void column_dealloc(PyObject *self) {
    Column *column = (Column *)self;
    free(column->element.name);
    if (column->holder)
        holder_drop(column->holder);
    free_object(self);
}

static PyMethodDef column_methods[] = {
    {"__array__", KEYWORDS(column_array), METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack__", KEYWORDS(column_dlpack), METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", column_device, METH_NOARGS, NULL},
    {"__arrow_c_array__", KEYWORDS(column_arrow), METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL}};
static PyType_Slot column_slots[] = {
    {Py_tp_doc, "A field of all datapoints, read-only: np.asarray(column) is (N,\n"
                "*shape), without a copy if the dataset is not sharded; numbers are\n"
                "uint or int64. Texts, bytes and sequences have only Arrow's form. It\n"
                "stays valid after close. DLPack before 1.0 receives a copy."},
    {Py_bf_getbuffer, column_buffer}, {Py_tp_dealloc, column_dealloc},
    {Py_tp_methods, column_methods}, {Py_sq_length, column_len}, {0, NULL}};
static PyType_Spec column_spec = {"bags._core.Column", sizeof(Column), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, column_slots};

int add_column(PyObject *module, State *state) {
    state->column = add_type(module, &column_spec, NULL, true);
    return state->column ? 0 : -1;
}
