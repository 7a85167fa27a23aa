/* doors.c - import and export as functions, documented in bags/doors.py. */
#include "core.h"

#include "doors.h"

#define SOURCE_CAPSULE "bags._core.source"

static const Doors *doors;

static const Doors *load_doors(void) {
    if (!doors) {
        OWNED PyObject *module = PyImport_ImportModule("bags._doors");
        doors = module ? (const Doors *)PyCapsule_Import(DOORS_CAPSULE, 0) : NULL;
    }
    return doors;
}

/* formats(): the names of the importers, and of the exporters with their endings */
static PyObject *door_formats(PyObject *module, PyObject *unused) {
    OWNED PyObject *in = PyList_New(0), *out = PyList_New(0);
    (void)module, (void)unused;
    if (!in || !out || !load_doors())
        return NULL;
    for (size_t i = 0; doors->importers[i]; i++) {
        OWNED PyObject *name = PyUnicode_FromString(doors->importers[i]->name);
        if (!name || PyList_Append(in, name))
            return NULL;
    }
    for (size_t i = 0; doors->exporters[i]; i++) {
        OWNED PyObject *one = Py_BuildValue(
            "ss", doors->exporters[i]->name, doors->exporters[i]->endings);
        if (!one || PyList_Append(out, one))
            return NULL;
    }
    return Py_BuildValue("OO", in, out);
}

/* recognize(path): the number of the importer of a source, given as bytes */
static PyObject *door_recognize(PyObject *module, PyObject *path) {
    State *state = (State *)PyModule_GetState(module);
    const char *text = PyBytes_AsString(path);
    size_t found = 0;
    bags_error err;
    if (!text || !load_doors())
        return NULL;
    if (!doors->recognize(doors->importers, text, &found, &err))
        return PyLong_FromSize_t(found);
    return raise_error_of(state, &err, text);
}

/* ---- sources ---- */

/* An open source, and the memory that its options refer to. */
typedef struct Opening {
    bags_source *source;
    bags_registry *registry; /* turns images upright, and expands palettes */
    bags_jpeg_options jpeg;
    bags_png_options png;
    char *image_type;
    PyObject *notes; /* list of str */
    Progress progress;
} Opening;

static void opening_free(PyObject *capsule) {
    Opening *opening = (Opening *)PyCapsule_GetPointer(capsule, SOURCE_CAPSULE);
    if (opening->source)
        doors->close(opening->source);
    bags_registry_free(opening->registry);
    free(opening->image_type);
    Py_XDECREF(opening->notes);
    PyMem_Free(opening);
}

static void opening_note(void *user, const char *message) {
    Opening *opening = (Opening *)user;
    PyGILState_STATE gil = PyGILState_Ensure();
    OWNED PyObject *text =
        PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "backslashreplace");
    if (!text || PyList_Append(opening->notes, text))
        PyErr_Clear();
    Py_CLEAR(text);
    PyGILState_Release(gil);
}

/* The bytes read so far are not in the unit of the copy that follows: only signal
 * handlers run. */
static void opening_step(void *user, uint64_t bytes) {
    progress_note(&((Opening *)user)->progress, bytes, 0);
}

static bool opening_registry(Opening *opening) {
    bags_error err;
    opening->registry = bags_registry_create(NULL, &err);
    bool good = opening->registry != NULL;
#ifdef BAGS_WITH_JPEG
    bags_codec jpeg = bags_codec_jpeg;
    opening->jpeg.orient = true;
    jpeg.user = &opening->jpeg;
    good = good && !bags_registry_add(opening->registry, &jpeg, &err);
#endif
#ifdef BAGS_WITH_PNG
    bags_codec png = bags_codec_png;
    opening->png.orient = opening->png.expand = true;
    png.user = &opening->png;
    good = good && !bags_registry_add(opening->registry, &png, &err);
#endif
    if (!good)
        PyErr_NoMemory();
    return good;
}

static PyObject *source_fields(const bags_source *source) {
    OWNED PyObject *fields = PyList_New(0);
    for (size_t i = 0; fields && i < source->count; i++) {
        OWNED PyObject *field =
            Py_BuildValue("ss", source->fields[i].name, source->fields[i].type);
        if (!field || PyList_Append(fields, field))
            return NULL;
    }
    return Py_XNewRef(fields);
}

static PyObject *source_left_out(const bags_source *source) {
    OWNED PyObject *kinds = PyDict_New();
    for (size_t i = 0; kinds && i < source->left_out_count; i++) {
        const bags_left_out *one = &source->left_out[i];
        OWNED PyObject *count = PyLong_FromUnsignedLongLong(one->count);
        if (!count || PyDict_SetItemString(kinds, one->what, count))
            return NULL;
    }
    return Py_XNewRef(kinds);
}

static PyObject *source_classes(const bags_source *source) {
    OWNED PyObject *names = PyList_New(0);
    for (size_t i = 0; names && source->images && i < source->images->class_count;
         i++) {
        OWNED PyObject *name = PyUnicode_DecodeFSDefault(source->images->classes[i]);
        if (!name || PyList_Append(names, name))
            return NULL;
    }
    return Py_XNewRef(names);
}

/* source(path, importer, options, image_type): (source, fields, length or None, the
 * number of things left out of each kind, the names of classes, a list of notes that
 * grows while the source is read, the text of info.json or None) */
static PyObject *door_source(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *image_type;
    PyObject *path, *packed;
    Py_ssize_t importer;
    bags_source_options how;
    bags_error err;
    if (!PyArg_ParseTuple(args, "SnOz", &path, &importer, &packed, &image_type) ||
        !take_struct(&how, sizeof how, packed) || !load_doors())
        return NULL;
    Opening *opening = (Opening *)PyMem_Calloc(1, sizeof *opening);
    OWNED PyObject *capsule =
        opening ? PyCapsule_New(opening, SOURCE_CAPSULE, opening_free) : NULL;
    if (!capsule)
        return PyMem_Free(opening), PyErr_NoMemory();
    opening->notes = PyList_New(0);
    opening->progress.call = Py_None;
    opening->image_type = image_type ? strdup(image_type) : NULL;
    if (!opening->notes || !opening_registry(opening))
        return NULL;
    how.image_type = opening->image_type;
    how.registry = opening->registry;
    how.note = opening_note;
    how.progress = opening_step;
    how.user = opening;
    const char *text = PyBytes_AsString(path);
    WITHOUT_GIL(
        opening->source = doors->open(doors->importers[importer], text, &how, &err));
    if (!progress_end(&opening->progress, false))
        return NULL;
    if (!opening->source)
        return raise_error_of(state, &err, text);
    const bags_source *source = opening->source;
    return Py_BuildValue("ONNNNOz", capsule, source_fields(source),
        source->length == BAGS_SOURCE_UNKNOWN
            ? Py_NewRef(Py_None)
            : PyLong_FromUnsignedLongLong(source->length),
        source_left_out(source), source_classes(source), opening->notes,
        source->metadata);
}

/* ---- copying a source ---- */

/* A field of the dataset. */
typedef struct Plan {
    Py_ssize_t from; /* in the source */
    const char *name, *type;
    bool converted, is_class;
} Plan;

/* A copy of a source to a writer. */
typedef struct Copying {
    Opening *opening;
    const bags_registry *registry;
    Plan *plans;
    bags_entry *entries;
    size_t count;
    uint64_t start, stop, skip; /* worker `start` of `stop`; datapoints that exist */
    bool skip_damaged, appending;
    const uint64_t *classes; /* the numbers of the source's classes */
    bags_buffer values, *scratch;
    size_t scratch_count;
    uint64_t copied;
    Progress *progress;
} Copying;

/* A value of the type of the source, as one of another type. A writer checks numbers and
 * arrays. Only what was bytes may be any blob, if the type's codec accepts it. */
static bags_code convert_value(Copying *copying, const Plan *plan, size_t item,
    bags_value *value, bags_error *err) {
    char kind[BAGS_ERROR_SIZE];
    const char *from = copying->opening->source->fields[plan->from].type;
    bags_view blob = {(const unsigned char *)value->data, value->size};
    bags_buffer *scratch = &copying->scratch[item];
    bool is_bytes = strncmp(from, "bytes", 5) == 0;
    bags_value decoded;
    if (value->kind != BAGS_KIND_BLOB && !(is_bytes && value->kind == BAGS_KIND_BYTES))
        return BAGS_OK;
    const char *type = is_bytes ? plan->type : from;
    (void)snprintf(kind, sizeof kind, "%.*s", (int)strcspn(type, "["), type);
    bags_code code = bags_decode(copying->registry, kind, blob, scratch, &decoded, err);
    if (!code)
        *value = is_bytes ? bags_blob(blob.data, blob.size) : decoded;
    return code;
}

/* One buffer for each item that is converted. */
static bags_code reserve_scratch(Copying *copying, size_t count, bags_error *err) {
    if (count <= copying->scratch_count)
        return BAGS_OK;
    bags_buffer *more = (bags_buffer *)realloc(copying->scratch, count * sizeof *more);
    if (!more)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    memset(more + copying->scratch_count, 0,
        (count - copying->scratch_count) * sizeof *more);
    copying->scratch = more;
    copying->scratch_count = count;
    return BAGS_OK;
}

/* Set the writer's entries from the source's entries. */
static bags_code plan_entries(
    Copying *copying, const bags_entry *entries, bags_error *err) {
    size_t total = 0, at = 0;
    for (size_t i = 0; i < copying->count; i++)
        total += entries[copying->plans[i].from].count;
    if (reserve_scratch(copying, total, err) ||
        bags_buffer_reserve(&copying->values, (total + 1) * sizeof(bags_value), err))
        return err->code;
    bags_value *values = (bags_value *)(void *)copying->values.data;
    for (size_t i = 0; i < copying->count; i++) {
        const Plan *plan = &copying->plans[i];
        const bags_entry *from = &entries[plan->from];
        copying->entries[i].field = plan->name;
        copying->entries[i].values = values + at;
        copying->entries[i].count = from->count;
        for (size_t k = 0; k < from->count; k++, at++) {
            values[at] = from->values[k];
            if (plan->is_class && copying->classes)
                values[at] = bags_uint(copying->classes[values[at].uint]);
            if (plan->converted && convert_value(copying, plan, at, &values[at], err))
                return bags_prefix(err, err->code, "field \"%s\": ", plan->name);
        }
    }
    return BAGS_OK;
}

static bags_code copy_all(Written *writer, Copying *copying, bags_error *err) {
    bags_source *source = copying->opening->source;
    const bags_entry *entries;
    bool known = source->length != BAGS_SOURCE_UNKNOWN;
    uint64_t total = known ? source->length : 0;
    for (uint64_t i = 0; !known || i < source->length; i++) {
        uint64_t share = source->shares ? source->shares[i] : i;
        if (!progress_step(copying->progress, i, total))
            return bags_fail(err, BAGS_ERROR_IO, "interrupted");
        if (copying->stop > 1 && share % copying->stop != copying->start)
            continue;
        if (known && !copying->skip_damaged && copying->skip) {
            copying->skip--;
            continue;
        }
        if (doors->read(source, i, &entries, err))
            return err->code;
        if (source->damaged)
            continue;
        if (!entries && known)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: ends at datapoint %" PRIu64 " (expected %" PRIu64 ")",
                source->path, i, source->length);
        if (!entries)
            break;
        if (copying->skip) {
            copying->skip--;
            continue;
        }
        if (plan_entries(copying, entries, err))
            return bags_prefix(
                err, err->code, "%s: datapoint %" PRIu64 ": ", source->path, i);
        if (bags_writer_append(writer->dataset, copying->entries, copying->count, err))
            return err->code;
        copying->copied++;
    }
    /* Data after the last datapoint, such as a checksum, may also be invalid. */
    if (known && doors->read(source, source->length, &entries, err))
        return err->code;
    if (known && entries)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: has more than %" PRIu64 " datapoints", source->path, source->length);
    copying->progress->total = known ? total : bags_writer_length(writer->dataset);
    return BAGS_OK;
}

/* After a failure, the shard stays unfinished, so that it can be resumed: a datapoint is
 * begun, and not ended. Without any datapoint, it is removed. */
static bags_code copy_or_keep(Written *writer, void *data, bags_error *err) {
    Copying *copying = (Copying *)data;
    bags_error ignored;
    bags_code code = copy_all(writer, copying, err);
    if (!code || copying->appending)
        return code;
    if (bags_writer_length(writer->dataset) == 0) {
        bags_writer_abort(writer->dataset);
        writer->dataset = NULL;
        return code;
    }
    bags_writer_cancel(writer->dataset);
    bags_writer_clear(writer->dataset);
    if (!bags_writer_flush(writer->dataset, &ignored))
        (void)bags_writer_begin(writer->dataset, &ignored);
    return code;
}

static bool take_plans(Copying *copying, PyObject *list) {
    copying->count = (size_t)PyList_Size(list);
    copying->plans = (Plan *)PyMem_Calloc(copying->count + 1, sizeof *copying->plans);
    copying->entries =
        (bags_entry *)PyMem_Calloc(copying->count + 1, sizeof *copying->entries);
    if (!copying->plans || !copying->entries)
        return PyErr_NoMemory() != NULL;
    for (size_t i = 0; i < copying->count; i++) {
        Plan *plan = &copying->plans[i];
        int converted, is_class;
        if (!PyArg_ParseTuple(PyList_GetItem(list, (Py_ssize_t)i), "nsspp", &plan->from,
                &plan->name, &plan->type, &converted, &is_class))
            return false;
        plan->converted = converted;
        plan->is_class = is_class;
    }
    return true;
}

static PyObject *image_counts(const bags_images *images) {
#define COUNT(name) #name, (unsigned long long)images->name
    return images ? Py_BuildValue("{sK sK sK sK sK sK sK sK sK sK}", COUNT(jpegs),
                        COUNT(pngs), COUNT(converted), COUNT(turned), COUNT(to_turn),
                        COUNT(renamed), COUNT(damaged), COUNT(others), COUNT(hidden),
                        COUNT(links))
                  : Py_NewRef(Py_None);
#undef COUNT
}

/* copy_source(source, writer, plans, start, stop, skip, skip_damaged, appending,
 * classes, progress): (datapoints, counts of images or None); plans: a list of (index in the
 * source, name, type, is it converted, is it a class) */
static PyObject *door_copy(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *capsule, *writer, *plans;
    const char *classes;
    Py_ssize_t size;
    unsigned long long start, stop, skip;
    int skip_damaged, appending;
    Progress progress = {0};
    Copying copying;
    memset(&copying, 0, sizeof copying);
    if (!PyArg_ParseTuple(args, "OOO!KKKppz#O", &capsule, &writer, &PyList_Type, &plans,
            &start, &stop, &skip, &skip_damaged, &appending, &classes, &size,
            &progress.call))
        return NULL;
    copying.opening = (Opening *)PyCapsule_GetPointer(capsule, SOURCE_CAPSULE);
    if (!copying.opening)
        return NULL;
    copying.registry = state->registry;
    copying.start = start;
    copying.stop = stop;
    copying.skip = skip;
    copying.skip_damaged = skip_damaged;
    copying.appending = appending;
    copying.classes = (const uint64_t *)(const void *)classes;
    copying.progress = &progress;
    bool good =
        take_plans(&copying, plans) && call_writer(writer, copy_or_keep, &copying);
    for (size_t i = 0; i < copying.scratch_count; i++)
        bags_buffer_free(&copying.scratch[i]);
    free(copying.scratch);
    bags_buffer_free(&copying.values);
    PyMem_Free(copying.plans);
    PyMem_Free(copying.entries);
    if (!progress_end(&progress, good))
        return NULL;
    return Py_BuildValue("KN", (unsigned long long)copying.copied,
        image_counts(copying.opening->source->images));
}

/* describe(path, json, no_sync): write info.json unless it exists. False if another one
 * exists. */
static PyObject *door_describe(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *path, *text;
    Py_ssize_t size;
    int no_sync;
    bags_reader_options how = {0};
    AT_END(bags_buffer_free) bags_buffer buffer = {0};
    bags_view found = {NULL, 0};
    bags_error err;
    if (!PyArg_ParseTuple(args, "ys#p", &path, &text, &size, &no_sync))
        return NULL;
    const bags_view json = {(const unsigned char *)text, (size_t)size};
    how.unfinished = BAGS_UNFINISHED_READ;
    how.allow_gaps = true;
    bags_reader *reader = bags_reader_open(path, &how, &err);
    bool good =
        reader && !bags_metadata_read(path, reader, NULL, &buffer, &found, &err);
    bags_reader_close(reader);
    if (good && !found.data)
        good = !bags_metadata_write(path, json, no_sync, NULL, &err);
    if (!good)
        return raise_error_of(state, &err, path);
    return PyBool_FromLong(
        !found.data ||
        (found.size == json.size && memcmp(found.data, json.data, json.size) == 0));
}

/* ---- export ---- */

/* An export of a reader that is open. */
static bags_code export_reader(const bags_reader *reader, const char *path,
    const bags_exporter *exporter, const char *out, bags_export_options *how,
    const bags_io *io, bags_export_report *report, bags_error *err) {
    const bags_env env = {NULL, io};
    bags_buffer buffer = {0};
    bags_code code = BAGS_OK;
    if (strcmp(exporter->name, "lerobot") == 0)
        code = bags_metadata_read(path, reader, &env, &buffer, &how->metadata, err);
    if (!code)
        code = doors->export_to(reader, exporter, out, how, report, err);
    bags_buffer_free(&buffer);
    return code;
}

static bags_field *take_names(PyObject *list) {
    size_t count = (size_t)PyList_Size(list);
    bags_field *fields = (bags_field *)PyMem_Calloc(count + 1, sizeof *fields);
    if (!fields)
        return PyErr_NoMemory(), NULL;
    for (size_t i = 0; i < count; i++)
        if (!PyArg_ParseTuple(PyList_GetItem(list, (Py_ssize_t)i), "ss",
                &fields[i].name, &fields[i].type))
            return PyMem_Free(fields), NULL;
    return fields;
}

/* export_to(path, storage, exporter, out, options, fields, rows, key, label, progress):
 * (datapoints, files); fields: a list of (name, name in the export), or an empty one for
 * all; rows: 64-bit numbers as bytes, or None */
static PyObject *door_export(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *path, *out, *rows, *key, *label;
    PyObject *storage, *packed, *names;
    Py_ssize_t exporter, rows_size;
    Progress progress = {0};
    bags_reader_options reading = {0};
    bags_export_options how;
    bags_export_report report = {0};
    bags_reader *reader;
    bags_error err;
    bags_code code = BAGS_OK;
    if (!PyArg_ParseTuple(args, "yOnyOO!z#zzO", &path, &storage, &exporter, &out,
            &packed, &PyList_Type, &names, &rows, &rows_size, &key, &label,
            &progress.call) ||
        !take_struct(&how, sizeof how, packed) || !load_doors())
        return NULL;
    reading.registry = state->blobs;
    reading.env.io = storage_io(state, storage, tool_io());
    bags_field *fields = reading.env.io ? take_names(names) : NULL;
    if (!fields)
        return NULL;
    how.fields = PyList_Size(names) ? fields : NULL;
    how.fields_count = (size_t)PyList_Size(names);
    how.rows = (const uint64_t *)(const void *)rows;
    how.rows_count = (size_t)rows_size / sizeof *how.rows;
    how.key = key;
    how.label = label;
    how.prefetch = reading.env.io->read_many != NULL;
    how.progress = progress_step;
    how.user = &progress;
    WITHOUT_GIL(
        reader = bags_reader_open(path, &reading, &err);
        if (reader) code = export_reader(reader, path, doors->exporters[exporter], out,
            &how, reading.env.io, &report, &err);
        bags_reader_close(reader));
    PyMem_Free(fields);
    bool good = reader && !code;
    progress.total = report.datapoints;
    if (!progress_end(&progress, good))
        return NULL;
    if (good)
        return Py_BuildValue("KK", (unsigned long long)report.datapoints,
            (unsigned long long)report.files);
    size_t size = text_in_message(err.message, out);
    return raise_error_of(
        state, &err, size > text_in_message(err.message, path) ? out : path);
}

PyMethodDef door_functions[] = {{"formats", door_formats, METH_NOARGS, NULL},
    {"recognize", door_recognize, METH_O, NULL},
    {"source", door_source, METH_VARARGS, NULL},
    {"copy_source", door_copy, METH_VARARGS, NULL},
    {"describe", door_describe, METH_VARARGS, NULL},
    {"export_to", door_export, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
