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

/* A field of a source, by its name there, and the type to which it is converted. */
typedef struct Wanted {
    char *name; /* as bags_import_name changes it */
    const char *type;
} Wanted;

/* An open source, and the memory that its options refer to. */
typedef struct Opening {
    bags_source *source;
    Codecs codecs; /* these turn images upright, and expand palettes */
    char *image_type;
    PyObject *types; /* owns the texts of `wanted` */
    Wanted *wanted;
    size_t wanted_count;
    PyObject *notes; /* list of str */
    Progress progress;
} Opening;

static void opening_free(PyObject *capsule) {
    Opening *opening = (Opening *)PyCapsule_GetPointer(capsule, SOURCE_CAPSULE);
    if (opening->source)
        doors->close(opening->source);
    codecs_free(&opening->codecs);
    free(opening->image_type);
    for (size_t i = 0; i < opening->wanted_count; i++)
        free(opening->wanted[i].name);
    PyMem_Free(opening->wanted);
    Py_XDECREF(opening->types);
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
static bool opening_step(void *user, uint64_t bytes) {
    return progress_step(&((Opening *)user)->progress, bytes, 0);
}

/* A name as fields have it. NULL if out of memory. */
static char *field_name(const char *name) {
    size_t size = strlen(name);
    char *made = (char *)malloc(size + 2);
    if (made)
        doors->name(name, size, made);
    return made;
}

/* Called while a source is opened. */
static bags_source_want opening_want(void *user, const char *field) {
    const Opening *opening = (const Opening *)user;
    bags_source_want want = BAGS_WANT_NOTHING;
    char *name = field_name(field);
    for (size_t i = 0; name && i < opening->wanted_count; i++)
        if (!strcmp(opening->wanted[i].name, name))
            want = doors->want(opening->wanted[i].type);
    free(name);
    return want;
}

/* Take a list of (name, type). */
static bool take_wanted(Opening *opening, PyObject *list) {
    size_t count = (size_t)PyList_Size(list);
    opening->types = Py_NewRef(list);
    opening->wanted = (Wanted *)PyMem_Calloc(count + 1, sizeof *opening->wanted);
    for (size_t i = 0; opening->wanted && i < count; i++) {
        Wanted *one = &opening->wanted[i];
        const char *name;
        if (!PyArg_ParseTuple(
                PyList_GetItem(list, (Py_ssize_t)i), "ss", &name, &one->type))
            return false;
        one->name = field_name(name);
        if (!one->name)
            return PyErr_NoMemory(), false;
        opening->wanted_count++;
    }
    return opening->wanted || (PyErr_NoMemory(), false);
}

/* field_name(text): the name that a field of a source with this name has */
static PyObject *door_name(PyObject *module, PyObject *text) {
    (void)module;
    const char *name = PyUnicode_AsUTF8AndSize(text, NULL);
    if (!name || !load_doors())
        return NULL;
    char *made = field_name(name);
    PyObject *out = made ? PyUnicode_FromString(made) : PyErr_NoMemory();
    free(made);
    return out;
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

/* source(path, importer, options, image_type, types, max_pixels): (source, fields, length
 * or None, the number of things left out of each kind, the names of classes, a list of
 * notes that grows while the source is read, the text of info.json or None). types: a
 * list of (name in the source, type), see Wanted. */
static PyObject *door_source(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *image_type;
    PyObject *path, *packed, *types;
    Py_ssize_t importer;
    unsigned long long max_pixels;
    bags_source_options how;
    bags_error err;
    if (!PyArg_ParseTuple(args, "SnOzO!K", &path, &importer, &packed, &image_type,
            &PyList_Type, &types, &max_pixels) ||
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
    Codecs *codecs = &opening->codecs;
    codecs->jpeg.orient = codecs->png.orient = codecs->webp.orient = true;
    codecs->png.expand = true;
    codecs->jpeg.max_pixels = codecs->png.max_pixels = max_pixels;
    codecs->webp.max_pixels = max_pixels;
    if (!opening->notes || !copy_codecs(codecs, state->registry) ||
        !take_wanted(opening, types))
        return NULL;
    how.image_type = opening->image_type;
    how.registry = opening->codecs.registry;
    how.want = opening_want;
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
    const char *name;
    bool sequence, is_class;
    const char *packed; /* msgpack or tree, if a writer takes these as bytes */
    bags_conversion *conversion;
} Plan;

/* A copy of a source to a writer. */
typedef struct Copying {
    Opening *opening;
    Plan *plans;
    size_t count;
    uint64_t start, stop, skip; /* worker `start` of `stop`; datapoints that exist */
    uint64_t most;              /* copy no more than this; 0: all */
    bool skip_damaged, appending;
    const uint64_t *classes; /* the numbers of the source's classes */
    uint64_t copied;
    bags_buffer scratch;
    Progress *progress;
} Copying;

/* The writers of this module take the msgpack of zstd(msgpack) as bytes: see
 * State.inside. */
static bags_code pack_object(
    Copying *copying, const Plan *plan, bags_value *value, bags_error *err) {
    bags_view blob;
    if (value->kind != BAGS_KIND_OBJECT || !plan->packed)
        return BAGS_OK;
    bags_code code = bags_encode(copying->opening->codecs.registry, plan->packed, value,
        &copying->scratch, &blob, err);
    if (!code)
        *value = bags_bytes(blob.data, blob.size);
    return code;
}

/* Convert and write the values of a field. The writer's messages state the field. */
static bags_code copy_field(bags_writer *to, Copying *copying, const Plan *plan,
    const bags_entry *entry, uint64_t index, bags_error *err) {
    size_t count = 0;
    bags_value value;
    bags_code code = doors->conversion_count(plan->conversion, entry, &count, err);
    for (size_t i = 0; !code && i < count; i++) {
        code = doors->conversion_get(plan->conversion, entry, i, &value, err);
        if (!code)
            code = pack_object(copying, plan, &value, err);
        if (code)
            break;
        if (plan->is_class && copying->classes)
            value = bags_uint(copying->classes[value.uint]);
        code = plan->sequence ? bags_writer_push(to, plan->name, &value, err)
                              : bags_writer_set(to, plan->name, &value, err);
        if (code)
            return code;
    }
    return code ? bags_prefix(err, code, "%s: datapoint %" PRIu64 ": field \"%s\": ",
                      copying->opening->source->path, index, plan->name)
                : BAGS_OK;
}

static bags_code copy_one(bags_writer *to, Copying *copying, const bags_entry *entries,
    uint64_t index, bags_error *err) {
    bags_code code = bags_writer_begin(to, err);
    for (size_t i = 0; !code && i < copying->count; i++) {
        const Plan *plan = &copying->plans[i];
        code = copy_field(to, copying, plan, &entries[plan->from], index, err);
    }
    return code ? code : bags_writer_end(to, err);
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
        if (copy_one(writer->dataset, copying, entries, i, err))
            return err->code;
        if (++copying->copied == copying->most)
            return BAGS_OK;
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
    if (!code)
        return code;
    bags_writer_cancel(writer->dataset);
    bags_writer_clear(writer->dataset);
    if (copying->appending)
        return code;
    if (bags_writer_length(writer->dataset) == 0) {
        bags_writer_abort(writer->dataset);
        writer->dataset = NULL;
        return code;
    }
    if (!bags_writer_flush(writer->dataset, &ignored))
        (void)bags_writer_begin(writer->dataset, &ignored);
    return code;
}

/* Take a list of plans: see door_copy. */
static bool take_plans(Copying *copying, PyObject *list) {
    const bags_source *source = copying->opening->source;
    bags_conversion_options how = {copying->opening->codecs.registry, doors->pack};
    size_t count = (size_t)PyList_Size(list);
    copying->plans = (Plan *)PyMem_Calloc(count + 1, sizeof *copying->plans);
    if (!copying->plans)
        return PyErr_NoMemory() != NULL;
    for (; copying->count < count; copying->count++) {
        Plan *plan = &copying->plans[copying->count];
        const char *type, *converted;
        int is_class;
        bags_type parsed;
        bags_error err;
        if (!PyArg_ParseTuple(PyList_GetItem(list, (Py_ssize_t)copying->count), "nsszp",
                &plan->from, &plan->name, &type, &converted, &is_class))
            return false;
        plan->is_class = is_class;
        plan->conversion =
            doors->conversion(source->fields[plan->from].type, converted, &how, &err);
        if (!plan->conversion || bags_type_parse(type, &parsed, &err))
            return PyErr_Format(PyExc_ValueError, "field \"%s\": %s", plan->name,
                       err.message) != NULL;
        plan->sequence = parsed.sequence;
        if (bags_view_is(parsed.name, "zstd"))
            plan->packed = bags_view_is(bags_type_argument(&parsed, 0), "tree")
                               ? "tree"
                               : "msgpack";
    }
    return true;
}

static void free_plans(Copying *copying) {
    for (size_t i = 0; copying->plans && i <= copying->count; i++)
        doors->conversion_close(copying->plans[i].conversion);
    PyMem_Free(copying->plans);
    bags_buffer_free(&copying->scratch);
}

static PyObject *image_counts(const bags_images *images) {
#define COUNT(name) #name, (unsigned long long)images->name
    return images ? Py_BuildValue("{sK sK sK sK sK sK sK sK sK sK sK}", COUNT(jpegs),
                        COUNT(pngs), COUNT(webps), COUNT(converted), COUNT(turned),
                        COUNT(to_turn), COUNT(renamed), COUNT(damaged), COUNT(others),
                        COUNT(hidden), COUNT(links))
                  : Py_NewRef(Py_None);
#undef COUNT
}

/* copy_source(source, writer, plans, start, stop, skip, most, skip_damaged, appending,
 * classes, progress): (datapoints, counts of images or None). plans: a list of (index in
 * the source, name, type, the type again if values are converted to it or None, is it a
 * class). most: of datapoints; 0: all. */
static PyObject *door_copy(PyObject *module, PyObject *args) {
    PyObject *capsule, *writer, *plans;
    const char *classes;
    Py_ssize_t size;
    unsigned long long start, stop, skip, most;
    int skip_damaged, appending;
    Progress progress = {0};
    Copying copying;
    (void)module;
    memset(&copying, 0, sizeof copying);
    if (!PyArg_ParseTuple(args, "OOO!KKKKppz#O", &capsule, &writer, &PyList_Type,
            &plans, &start, &stop, &skip, &most, &skip_damaged, &appending, &classes,
            &size, &progress.call))
        return NULL;
    copying.opening = (Opening *)PyCapsule_GetPointer(capsule, SOURCE_CAPSULE);
    if (!copying.opening)
        return NULL;
    copying.start = start;
    copying.stop = stop;
    copying.skip = skip;
    copying.most = most;
    copying.skip_damaged = skip_damaged;
    copying.appending = appending;
    copying.classes = (const uint64_t *)(const void *)classes;
    copying.progress = &progress;
    bool good =
        take_plans(&copying, plans) && call_writer(writer, copy_or_keep, &copying);
    free_plans(&copying);
    if (!progress_end(&progress, good))
        return NULL;
    return Py_BuildValue("KN", (unsigned long long)copying.copied,
        image_counts(copying.opening->source->images));
}

/* info(reader, path, storage): the content of info.json, or None; path is bytes */
static PyObject *door_info(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *reader, *storage;
    const char *path;
    AT_END(bags_buffer_free) bags_buffer buffer = {0};
    bags_view found = {NULL, 0};
    bags_env env = {NULL, NULL};
    bags_error err;
    bags_code code;
    if (!PyArg_ParseTuple(args, "OyO", &reader, &path, &storage))
        return NULL;
    OWNED Source *source = reader_source_of(state, reader);
    env.io = source ? storage_io(state, storage, tool_io()) : NULL;
    if (!env.io)
        return NULL;
    WITHOUT_GIL(
        code = bags_metadata_read(path, source->reader, &env, &buffer, &found, &err));
    if (call_failed(state, code, &err, source->path))
        return NULL;
    return found.data ? PyBytes_FromStringAndSize(
                            (const char *)found.data, (Py_ssize_t)found.size)
                      : Py_NewRef(Py_None);
}

/* describe(path, json, no_sync, replace): write info.json, unless another one exists that
 * is not to be replaced: then False. */
static PyObject *door_describe(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *path, *text;
    Py_ssize_t size;
    int no_sync, replace;
    bags_reader_options how = {0};
    AT_END(bags_buffer_free) bags_buffer buffer = {0};
    bags_view found = {NULL, 0};
    bags_error err;
    if (!PyArg_ParseTuple(args, "ys#pp", &path, &text, &size, &no_sync, &replace))
        return NULL;
    const bags_view json = {(const unsigned char *)text, (size_t)size};
    how.unfinished = BAGS_UNFINISHED_READ;
    how.allow_gaps = true;
    bags_reader *reader = bags_reader_open(path, &how, &err);
    bool good =
        reader && !bags_metadata_read(path, reader, NULL, &buffer, &found, &err);
    bags_reader_close(reader);
    if (replace)
        found.data = NULL;
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
    const bags_io *io, bags_export_report *report, bool *dropped, bags_error *err) {
    const bags_env env = {NULL, io};
    bags_buffer buffer = {0};
    bags_code code =
        bags_metadata_read(path, reader, &env, &buffer, &how->metadata, err);
    *dropped = how->metadata.data && !exporter->has_metadata;
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

/* export_to(path, storage, reader's options, exporter, out, options, fields, rows, key,
 * label, progress): (datapoints, files, whether the format has no place for info.json); fields: a list of
 * (name, name in the export), or an empty one for all; rows: 64-bit numbers as bytes, or
 * None */
static PyObject *door_export(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    const char *path, *out, *rows, *key, *label;
    PyObject *storage, *packed, *packed_reader, *names;
    Py_ssize_t exporter, rows_size;
    Progress progress = {0};
    bags_reader_options reading;
    bags_export_options how;
    bags_export_report report = {0};
    bool dropped = false;
    bags_reader *reader;
    bags_error err;
    bags_code code = BAGS_OK;
    if (!PyArg_ParseTuple(args, "yOOnyOO!z#zzO", &path, &storage, &packed_reader,
            &exporter, &out, &packed, &PyList_Type, &names, &rows, &rows_size, &key,
            &label, &progress.call) ||
        !take_struct(&how, sizeof how, packed) ||
        !take_struct(&reading, sizeof reading, packed_reader) || !load_doors())
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
            &how, reading.env.io, &report, &dropped, &err);
        bags_reader_close(reader));
    PyMem_Free(fields);
    bool good = reader && !code;
    progress.total = report.datapoints;
    if (!progress_end(&progress, good))
        return NULL;
    if (good)
        return Py_BuildValue("KKN", (unsigned long long)report.datapoints,
            (unsigned long long)report.files, PyBool_FromLong(dropped));
    size_t size = text_in_message(err.message, out);
    return raise_error_of(
        state, &err, size > text_in_message(err.message, path) ? out : path);
}

PyMethodDef door_functions[] = {{"formats", door_formats, METH_NOARGS, NULL},
    {"recognize", door_recognize, METH_O, NULL},
    {"field_name", door_name, METH_O, NULL},
    {"source", door_source, METH_VARARGS, NULL},
    {"copy_source", door_copy, METH_VARARGS, NULL},
    {"info", door_info, METH_VARARGS, NULL},
    {"describe", door_describe, METH_VARARGS, NULL},
    {"export_to", door_export, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
