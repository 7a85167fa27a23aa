/* commands.c - the commands derive, split, sql, zip and copy as functions, documented in
 * bags/commands.py. */
#include "core.h"

#include "index.h"

#ifdef BAGS_WITH_SQL
#include <sqlite3.h>
#endif

/* Raise an error whose message begins with one of these paths, as bytes objects. */
static void raise_for(
    State *state, const bags_error *err, PyObject *const *paths, size_t count) {
    const char *best = "";
    for (size_t i = 0; i < count; i++) {
        const char *path = PyBytes_AsString(paths[i]);
        if (text_in_message(err->message, path) >= strlen(best))
            best = text_in_message(err->message, path) ? path : best;
    }
    if (*best)
        raise_error_of(state, err, best);
    else
        raise_error(state, err, NULL);
}

/* ---- facts about a dataset ---- */

/* facts(reader, sums): (version, datapoints of the longest shard, is it sharded, do all
 * shards have checksums). The last one is False without `sums`: it opens every Bag. */
static PyObject *reader_facts(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *reader;
    int sums;
    bags_info info = {0};
    bags_error err;
    bags_code code = BAGS_OK;
    size_t count;
    uint64_t longest = 0;
    if (!PyArg_ParseTuple(args, "Op", &reader, &sums))
        return NULL;
    OWNED Source *source = reader_source_of(state, reader);
    if (!source)
        return NULL;
    const bags_shard *shards = bags_reader_shards(source->reader, &count);
    for (size_t i = 0; i < count; i++)
        longest = shards[i].length > longest ? shards[i].length : longest;
    if (sums)
        WITHOUT_GIL(code = bags_reader_info(source->reader, &info, NULL, &err));
    if (call_failed(state, code, &err, source->path))
        return NULL;
    return Py_BuildValue("(KKNN)",
        (unsigned long long)bags_reader_version(source->reader),
        (unsigned long long)longest,
        PyBool_FromLong(count != 1 || shards[0].digits > 0),
        PyBool_FromLong(sums && info.checksums == count));
}

/* shard_lengths(reader): a list of datapoints per shard */
static PyObject *reader_shard_lengths(PyObject *module, PyObject *reader) {
    State *state = (State *)PyModule_GetState(module);
    size_t count;
    OWNED Source *source = reader_source_of(state, reader);
    PyObject *out = source ? PyList_New(0) : NULL;
    const bags_shard *shards = out ? bags_reader_shards(source->reader, &count) : NULL;
    for (size_t i = 0; out && i < count; i++) {
        OWNED PyObject *length = PyLong_FromUnsignedLongLong(shards[i].length);
        if (!length || PyList_Append(out, length))
            Py_CLEAR(out);
    }
    return out;
}

/* index_files(reader, storage): the names of the files of all indexes that match the
 * dataset, for zip and copy. */
static PyObject *reader_index_files(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *reader, *storage;
    bags_index_options options;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTuple(args, "OO", &reader, &storage))
        return NULL;
    OWNED Source *source = reader_source_of(state, reader);
    OWNED PyObject *path = NULL;
    options.env.io = source ? storage_io(state, storage, tool_io()) : NULL;
    if (!options.env.io || !PyUnicode_FSConverter(source->path, &path))
        return NULL;
    size_t count;
    (void)bags_reader_fields(source->reader, &count);
    PyObject *out = PyList_New(0);
    for (size_t i = 0; out && i < count; i++) {
        bags_error err;
        bags_index *index;
        WITHOUT_GIL(index = bags_index_open(
                        PyBytes_AsString(path), source->reader, i, &options, &err));
        bags_index_close(index);
        if (PyErr_Occurred() || (!index && err.code == BAGS_ERROR_MEMORY)) {
            Py_CLEAR(out);
            raise_error(state, &err, NULL);
        }
        for (size_t k = 0; out && index && k < 2; k++) {
            char name[FORMAT_INDEX_NAME];
            format_index_name(source->reader, i, k == 1, name);
            OWNED PyObject *made = PyBytes_FromString(name);
            if (!made || PyList_Append(out, made))
                Py_CLEAR(out);
        }
    }
    return out;
}

/* ---- selections ---- */

#ifdef BAGS_WITH_SQL

/* where(reader, start, expression): the selected datapoints as bytes of 64-bit numbers.
 * Numbers begin at `start`. */
static PyObject *reader_where(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *reader;
    unsigned long long start;
    const char *where;
    bags_buffer numbers = {0};
    size_t count = 0;
    Progress progress;
    bags_error err;
    bags_code code;
    memset(&progress, 0, sizeof progress);
    progress.call = Py_None; /* only signals: steps are counted after the selection */
    if (!PyArg_ParseTuple(args, "OKs", &reader, &start, &where))
        return NULL;
    OWNED Source *source = reader_source_of(state, reader);
    if (!source)
        return NULL;
    WITHOUT_GIL(code = bags_sql_select(source->reader, start, where, progress_step,
                    &progress, &numbers, &count, &err));
    PyObject *out = NULL;
    if (progress_end(&progress, !code) && !call_failed(state, code, &err, source->path))
        out = PyBytes_FromStringAndSize(
            (const char *)numbers.data, (Py_ssize_t)(count * sizeof(uint64_t)));
    bags_buffer_free(&numbers);
    return out;
}

/* ---- sql ---- */

static PyObject *sql_value(sqlite3_stmt *query, int i) {
    switch (sqlite3_column_type(query, i)) {
    case SQLITE_NULL:
        return Py_NewRef(Py_None);
    case SQLITE_INTEGER:
        return PyLong_FromLongLong(sqlite3_column_int64(query, i));
    case SQLITE_FLOAT:
        return PyFloat_FromDouble(sqlite3_column_double(query, i));
    case SQLITE_TEXT: {
        const char *text = (const char *)sqlite3_column_text(query, i);
        return PyUnicode_DecodeUTF8(text, sqlite3_column_bytes(query, i), "strict");
    }
    default: {
        const char *data = (const char *)sqlite3_column_blob(query, i);
        return PyBytes_FromStringAndSize(data, sqlite3_column_bytes(query, i));
    }
    }
}

/* Append a row to each list of values. */
static bool sql_append(sqlite3_stmt *query, PyObject *columns) {
    for (int i = 0; i < PyList_Size(columns); i++) {
        OWNED PyObject *value = sql_value(query, i);
        if (!value || PyList_Append(PyList_GetItem(columns, i), value))
            return false;
    }
    return true;
}

/* A running query, and the number of rows so far. */
typedef struct Query {
    Progress progress;
    uint64_t rows;
} Query;

/* Called by SQLite. Returns nonzero to end the query. */
static int sql_step(void *user) {
    Query *query = (Query *)user;
    return !progress_step(&query->progress, query->rows, 0);
}

static bags_code sql_failed(sqlite3 *db, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_VALUE, "SQL: %s", sqlite3_errmsg(db));
}

static bags_code sql_prepare(
    sqlite3 *db, const char *text, sqlite3_stmt **query, bags_error *err) {
    const char *rest = NULL;
    if (sqlite3_prepare_v2(db, text, -1, query, &rest))
        return sql_failed(db, err);
    if (!*query)
        return bags_fail(err, BAGS_ERROR_VALUE, "SQL: an empty query");
    if (rest[strspn(rest, " \t\r\n;")])
        return bags_fail(err, BAGS_ERROR_VALUE, "SQL: more than one statement");
    bags_code code = bags_sql_check(*query, err);
    if (!code && sqlite3_column_count(*query) == 0)
        code = bags_fail(err, BAGS_ERROR_VALUE, "SQL: only queries are possible");
    return code;
}

/* Describe the columns of a query: a list of (name, declared type or None). */
static PyObject *sql_names(sqlite3_stmt *query) {
    PyObject *out = PyList_New(0);
    for (int i = 0; out && i < sqlite3_column_count(query); i++) {
        OWNED PyObject *one = Py_BuildValue(
            "(sz)", sqlite3_column_name(query, i), sqlite3_column_decltype(query, i));
        if (!one || PyList_Append(out, one))
            Py_CLEAR(out);
    }
    return out;
}

/* Run a query. Appends its values to `columns`, one list each. */
static bags_code sql_run(
    sqlite3 *db, sqlite3_stmt *query, Query *run, PyObject *columns, bags_error *err) {
    for (;;) {
        int step;
        WITHOUT_GIL(step = sqlite3_step(query));
        if (step == SQLITE_DONE)
            return BAGS_OK;
        if (step != SQLITE_ROW)
            return sql_failed(db, err);
        if (!sql_append(query, columns))
            return bags_fail(err, BAGS_ERROR_VALUE, "SQL: row %" PRIu64, run->rows);
        run->rows++;
    }
}

/* sql(reader, query, progress): ([(name, declared type), ...], [list of values, ...]) */
static PyObject *reader_sql(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *reader, *out = NULL, *columns = NULL;
    const char *text;
    Query run;
    bags_error err;
    sqlite3_stmt *query = NULL;
    bags_code code = BAGS_OK;
    memset(&run, 0, sizeof run);
    if (!PyArg_ParseTuple(args, "OsO", &reader, &text, &run.progress.call))
        return NULL;
    OWNED Source *source = reader_source_of(state, reader);
    if (!source)
        return NULL;
    sqlite3 *db = bags_sql_open(source->reader, &err);
    if (call_failed(state, db ? BAGS_OK : err.code, &err, source->path))
        return NULL;
    sqlite3_progress_handler(db, 10000, sql_step, &run);
    code = sql_prepare(db, text, &query, &err);
    OWNED PyObject *names = code ? NULL : sql_names(query);
    if (names)
        columns = PyList_New(0);
    for (Py_ssize_t i = 0; columns && i < PyList_Size(names); i++) {
        OWNED PyObject *list = PyList_New(0);
        if (!list || PyList_Append(columns, list))
            Py_CLEAR(columns);
    }
    if (columns)
        code = sql_run(db, query, &run, columns, &err);
    sqlite3_finalize(query);
    sqlite3_close(db);
    if (!code && columns)
        WITHOUT_GIL(code = bags_reader_check(source->reader, &err));
    run.progress.total = run.rows;
    if (!call_failed(state, code, &err, source->path) &&
        progress_end(&run.progress, columns != NULL))
        out = Py_BuildValue("(OO)", names, columns);
    Py_XDECREF(columns);
    return out;
}

#endif

/* permute(seed, length): a random order of 0 .. length - 1, as bytes of 64-bit
 * numbers. */
static PyObject *permute(PyObject *module, PyObject *args) {
    unsigned long long seed, length;
    (void)module;
    if (!PyArg_ParseTuple(args, "KK", &seed, &length))
        return NULL;
    PyObject *out =
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(length * sizeof(uint64_t)));
    if (!out)
        return NULL;
    uint64_t *numbers = (uint64_t *)(void *)PyBytes_AsString(out);
    for (uint64_t i = 0; i < length; i++)
        numbers[i] = bags_permute(seed, 0, length, i);
    return out;
}

/* ---- derive ---- */

typedef struct Sources {
    bags_derive_more *more; /* all sources; the first one too */
    bags_derived_field *fields;
    bags_derive_join join;
    PyObject **paths; /* borrowed bytes objects: all paths that messages may name */
    size_t count, fields_count, paths_count;
} Sources;

static void sources_free(Sources *sources) {
    PyMem_Free(sources->more);
    PyMem_Free(sources->fields);
    PyMem_Free(sources->paths);
}

/* Take a list of (path, storage, version), and a list of (name, its name in the source,
 * None) or (name, its name there, (path, storage, version)). */
static bool take_sources(
    State *state, PyObject *list, PyObject *fields, PyObject *out, Sources *to) {
    unsigned long long version;
    PyObject *storage, *other;
    to->count = (size_t)PyList_Size(list);
    to->fields_count = (size_t)PyList_Size(fields);
    to->more = (bags_derive_more *)PyMem_Calloc(to->count + 1, sizeof *to->more);
    to->fields =
        (bags_derived_field *)PyMem_Calloc(to->fields_count + 1, sizeof *to->fields);
    to->paths =
        (PyObject **)PyMem_Calloc(to->count + to->fields_count + 1, sizeof *to->paths);
    if (!to->more || !to->fields || !to->paths)
        return PyErr_NoMemory(), false;
    to->paths[to->paths_count++] = out;
    for (size_t i = 0; i < to->count; i++) {
        PyObject **path = &to->paths[to->paths_count++];
        if (!PyArg_ParseTuple(
                PyList_GetItem(list, (Py_ssize_t)i), "SOK", path, &storage, &version))
            return false;
        to->more[i].path = PyBytes_AsString(*path);
        to->more[i].version = version;
        to->more[i].io = storage_io(state, storage, tool_io());
        if (!to->more[i].io)
            return false;
    }
    for (size_t i = 0; i < to->fields_count; i++) {
        bags_derived_field *field = &to->fields[i];
        if (!PyArg_ParseTuple(PyList_GetItem(fields, (Py_ssize_t)i), "szO",
                &field->name, &field->from, &other))
            return false;
        if (other == Py_None)
            continue;
        PyObject **path = &to->paths[to->paths_count++];
        if (!PyArg_ParseTuple(other, "SOK", path, &storage, &version))
            return false;
        field->dataset = PyBytes_AsString(*path);
        field->version = version;
        field->io = storage_io(state, storage, tool_io());
        if (!field->io)
            return false;
    }
    return true;
}

/* Take None, or (path, storage, version, key in the source, key there, drop, first). */
static bool take_join(State *state, PyObject *from, Sources *to) {
    bags_derive_join *join = &to->join;
    unsigned long long version;
    PyObject *storage;
    int drop, first;
    if (from == Py_None)
        return true;
    if (!PyArg_ParseTuple(from, "yOKsspp", &join->dataset, &storage, &version,
            &join->on, &join->from, &drop, &first))
        return false;
    join->version = version;
    join->drop = drop;
    join->first = first;
    join->io = storage_io(state, storage, tool_io());
    return join->io != NULL;
}

/* derive(out, sources, fields, join, rows, options, writer options or None, progress): (a
 * report as the bytes of a struct, the path of a dataset whose info.json is not kept or
 * None). rows has 64-bit numbers as bytes, or is None. */
static PyObject *run_derive(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *out, *sources, *fields, *join, *packed, *copy;
    const char *rows;
    Py_ssize_t rows_size;
    AT_END(sources_free) Sources from = {0};
    bags_derive_options options;
    bags_writer_options writing;
    bags_derive_report report;
    Progress progress = {0};
    bags_error err;
    bags_code code;
    if (!PyArg_ParseTuple(args, "SO!O!Oz#OOO", &out, &PyList_Type, &sources,
            &PyList_Type, &fields, &join, &rows, &rows_size, &packed, &copy,
            &progress.call) ||
        !take_struct(&options, sizeof options, packed) ||
        (copy != Py_None && !take_struct(&writing, sizeof writing, copy)) ||
        !take_sources(state, sources, fields, out, &from) ||
        !take_join(state, join, &from))
        return NULL;
    options.joins = join == Py_None ? NULL : &from.join;
    options.joins_count = join != Py_None;
    options.copy = copy == Py_None ? NULL : &writing;
    options.fields = from.fields;
    options.fields_count = from.fields_count;
    options.rows = (const uint64_t *)(const void *)rows;
    options.rows_count = (size_t)rows_size / sizeof *options.rows;
    options.version = from.more[0].version;
    options.from = from.more[0].io;
    options.more = from.more + 1;
    options.more_count = from.count - 1;
    options.progress = progress_step;
    options.user = &progress;
    options.registry = state->blobs;
    options.env.io = tool_io();
    WITHOUT_GIL(code = bags_derive(
                    from.more[0].path, PyBytes_AsString(out), &options, &report, &err));
    size_t size = strlen(err.message);
    if (code && report.copy)
        (void)snprintf(
            err.message + size, sizeof err.message - size, ": use copy=True");
    if (code == BAGS_ERROR_MISSING && report.missing > 0)
        err.code = BAGS_ERROR_VALUE; /* a key is missing, not a file */
    progress.total = code ? 0 : report.length;
    if (!progress_end(&progress, !code))
        return NULL;
    if (code)
        return raise_for(state, &err, from.paths, from.paths_count), NULL;
    return Py_BuildValue(
        "(y#z)", (const char *)&report, (Py_ssize_t)sizeof report, report.metadata);
}

/* ---- pixels ---- */

typedef struct Pixels {
    bags_resized_field *fields;
    const bags_reader **readers;
    Source **sources; /* owned references */
    size_t count;
} Pixels;

static void pixels_free(Pixels *pixels) {
    for (size_t i = 0; i < pixels->count; i++)
        Py_DECREF((PyObject *)pixels->sources[i]);
    PyMem_Free(pixels->fields);
    PyMem_Free(pixels->readers);
    PyMem_Free(pixels->sources);
}

/* Take a list of readers, and a list of (name, width, height). */
static bool take_pixels(State *state, PyObject *readers, PyObject *fields, Pixels *to) {
    size_t count = (size_t)PyList_Size(readers),
           field_count = (size_t)PyList_Size(fields);
    to->fields =
        (bags_resized_field *)PyMem_Calloc(field_count + 1, sizeof *to->fields);
    to->readers = (const bags_reader **)PyMem_Calloc(count + 1, sizeof *to->readers);
    to->sources = (Source **)PyMem_Calloc(count + 1, sizeof *to->sources);
    if (!to->fields || !to->readers || !to->sources)
        return PyErr_NoMemory(), false;
    for (; to->count < count; to->count++) {
        Source *source =
            reader_source_of(state, PyList_GetItem(readers, (Py_ssize_t)to->count));
        if (!source)
            return false;
        to->sources[to->count] = source;
        to->readers[to->count] = source->reader;
    }
    for (size_t i = 0; i < field_count; i++)
        if (!PyArg_ParseTuple(PyList_GetItem(fields, (Py_ssize_t)i), "sII",
                &to->fields[i].name, &to->fields[i].width, &to->fields[i].height))
            return false;
    return true;
}

/* pixels(out, readers, fields, rows, shard_start, shard_step, shard_length, checksum,
 * sync, progress): decode images to the existing, empty directory `out`. rows has
 * 64-bit numbers as bytes, or is None. */
static PyObject *run_pixels(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *out, *readers, *fields;
    const char *rows;
    Py_ssize_t rows_size;
    int checksum, sync;
    AT_END(pixels_free) Pixels pixels = {0};
    bags_resize_options options;
    Progress progress = {0};
    bags_error err;
    bags_code code;
    unsigned long long start, step, length;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTuple(args, "SO!O!z#KKKppO", &out, &PyList_Type, &readers,
            &PyList_Type, &fields, &rows, &rows_size, &start, &step, &length, &checksum,
            &sync, &progress.call) ||
        !take_pixels(state, readers, fields, &pixels))
        return NULL;
    options.fields = pixels.fields;
    options.field_count = (size_t)PyList_Size(fields);
    options.rows = (const uint64_t *)(const void *)rows;
    options.rows_count = (size_t)rows_size / sizeof *options.rows;
    options.shard_start = start;
    options.shard_stop = step;
    options.shard_length = length;
    options.checksum = checksum;
    options.no_sync = !sync;
    options.images = &loader_images;
    options.progress = progress_step;
    options.user = &progress;
    options.env.io = tool_io();
    WITHOUT_GIL(code = bags_resize(pixels.readers, pixels.count, PyBytes_AsString(out),
                    &options, &err));
    if (!progress_end(&progress, false))
        return NULL;
    if (!code)
        Py_RETURN_NONE;
    size_t size = 0;
    for (size_t i = 0; !size && i < pixels.count; i++)
        size = path_in_message(err.message, pixels.sources[i]->path);
    return raise_error_at(state, &err, NULL, size), NULL;
}

/* ---- split ---- */

/* Readers that give the blobs inside zstd(...), as bags_split compares them. */
typedef struct Parts {
    Sources from;
    bags_reader **readers;
    bags_buffer part_of;
    double *sizes;
} Parts;

static void parts_free(Parts *parts) {
    for (size_t i = 0; parts->readers && i < parts->from.count; i++)
        bags_reader_close(parts->readers[i]);
    sources_free(&parts->from);
    PyMem_Free(parts->readers);
    PyMem_Free(parts->sizes);
    bags_buffer_free(&parts->part_of);
}

static bags_code parts_open(Parts *parts, const bags_registry *blobs, bags_error *err) {
    for (size_t i = 0; i < parts->from.count; i++) {
        const bags_derive_more *source = &parts->from.more[i];
        bags_reader_options options;
        memset(&options, 0, sizeof options);
        options.registry = blobs;
        options.env.io = source->io;
        parts->readers[i] = bags_reader_open(source->path, &options, err);
        if (!parts->readers[i])
            return err->code;
        if (bags_reader_version(parts->readers[i]) != source->version)
            return bags_fail(err, BAGS_ERROR_CHANGED, "%s: another version replaced it",
                bags_path_tail(source->path));
    }
    return BAGS_OK;
}

/* split(sources, rows, sizes, seed, by, stratify, progress): the part of each selected
 * datapoint, as bytes of 32-bit numbers. */
static PyObject *run_split(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *sources, *sizes;
    OWNED PyObject *none = PyList_New(0);
    const char *rows;
    Py_ssize_t rows_size;
    unsigned long long seed;
    AT_END(parts_free) Parts parts = {0};
    bags_split_options options;
    Progress progress = {0};
    bags_error err;
    bags_code code;
    memset(&options, 0, sizeof options);
    if (!none ||
        !PyArg_ParseTuple(args, "O!z#O!KzzO", &PyList_Type, &sources, &rows, &rows_size,
            &PyList_Type, &sizes, &seed, &options.by, &options.stratify,
            &progress.call) ||
        !take_sources(state, sources, none, Py_None, &parts.from))
        return NULL;
    options.parts_count = (size_t)PyList_Size(sizes);
    parts.sizes = (double *)PyMem_Calloc(options.parts_count + 1, sizeof *parts.sizes);
    parts.readers =
        (bags_reader **)PyMem_Calloc(parts.from.count + 1, sizeof *parts.readers);
    if (!parts.sizes || !parts.readers)
        return PyErr_NoMemory();
    for (size_t i = 0; i < options.parts_count; i++)
        parts.sizes[i] = PyFloat_AsDouble(PyList_GetItem(sizes, (Py_ssize_t)i));
    if (PyErr_Occurred())
        return NULL;
    options.parts = parts.sizes;
    options.seed = seed;
    options.rows = (const uint64_t *)(const void *)rows;
    options.rows_count = (size_t)rows_size / sizeof *options.rows;
    options.progress = progress_step;
    options.user = &progress;
    WITHOUT_GIL(code = parts_open(&parts, state->blobs, &err);
                if (!code) code = bags_split((const bags_reader *const *)parts.readers,
                    parts.from.count, &options, &parts.part_of, &err));
    if (!progress_end(&progress, false))
        return NULL;
    if (code)
        return raise_for(state, &err, parts.from.paths + 1, parts.from.count), NULL;
    size_t count = 0;
    for (size_t i = 0; !rows && i < parts.from.count; i++)
        count += (size_t)bags_reader_length(parts.readers[i]);
    count = rows ? options.rows_count : count;
    return PyBytes_FromStringAndSize(
        (const char *)parts.part_of.data, (Py_ssize_t)(count * sizeof(uint32_t)));
}

/* ---- zip ---- */

/* Take a list of bytes objects. It must outlive the result. NULL with an
 * exception. */
static const char **take_files(PyObject *list, size_t *count) {
    *count = (size_t)PyList_Size(list);
    const char **files = (const char **)PyMem_Calloc(*count + 1, sizeof *files);
    for (size_t i = 0; files && i < *count; i++)
        files[i] = PyBytes_AsString(PyList_GetItem(list, (Py_ssize_t)i));
    if (!files)
        PyErr_NoMemory();
    return files;
}

/* zip(dataset, storage, path, whole, no_sync, files, progress): files is a list of
 * bytes. */
static PyObject *run_zip(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *paths[2], *storage, *list;
    int whole, no_sync;
    Progress progress = {0};
    bags_zip_options options;
    bags_error err;
    bags_code code;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTuple(args, "SOSppO!O", &paths[0], &storage, &paths[1], &whole,
            &no_sync, &PyList_Type, &list, &progress.call))
        return NULL;
    options.from = storage_io(state, storage, tool_io());
    options.files = options.from ? take_files(list, &options.files_count) : NULL;
    if (!options.files)
        return NULL;
    options.whole = whole;
    options.no_sync = no_sync;
    options.progress = progress_note;
    options.user = &progress;
    options.env.io = tool_io();
    WITHOUT_GIL(code = bags_zip(PyBytes_AsString(paths[0]), PyBytes_AsString(paths[1]),
                    &options, &err));
    PyMem_Free((void *)options.files);
    if (!progress_end(&progress, !code))
        return NULL;
    return code ? (raise_for(state, &err, paths, 2), NULL) : Py_NewRef(Py_None);
}

/* ---- copy ---- */

/* The callback's argument. */
typedef struct Copying {
    State *state;
    PyObject *storage;
    Progress progress;
} Copying;

/* Threads that wait for a server then give up. */
static bool copy_progress(void *user, uint64_t done, uint64_t total) {
    Copying *copying = (Copying *)user;
    bool good = progress_step(&copying->progress, done, total);
    if (!good)
        storage_end(copying->state, copying->storage);
    return good;
}

/* copy(path, storage, out, storage of out, whole, files, progress): a report as the bytes
 * of a struct. */
static PyObject *run_copy(PyObject *module, PyObject *args) {
    State *state = (State *)PyModule_GetState(module);
    PyObject *paths[2], *to, *list;
    int whole;
    Copying copying = {state, NULL, {0}};
    bags_copy_options options;
    bags_copy_objects from_objects, to_objects;
    bags_copy_report report;
    bags_error err;
    bags_code code;
    memset(&options, 0, sizeof options);
    if (!PyArg_ParseTuple(args, "SOSOpO!O", &paths[0], &copying.storage, &paths[1], &to,
            &whole, &PyList_Type, &list, &copying.progress.call))
        return NULL;
    options.from = storage_io(state, copying.storage, tool_io());
    options.to = options.from ? storage_io(state, to, tool_io()) : NULL;
    options.files = options.to ? take_files(list, &options.files_count) : NULL;
    if (!options.files)
        return NULL;
    if (storage_objects(state, copying.storage, &from_objects))
        options.from_objects = &from_objects;
    if (storage_objects(state, to, &to_objects))
        options.to_objects = &to_objects;
    options.whole = whole;
    options.progress = copy_progress;
    options.user = &copying;
    WITHOUT_GIL(code = bags_copy(PyBytes_AsString(paths[0]), PyBytes_AsString(paths[1]),
                    &options, &report, &err));
    PyMem_Free((void *)options.files);
    if (!progress_end(&copying.progress, !code))
        return NULL;
    if (code)
        return raise_for(state, &err, paths, 2), NULL;
    return PyBytes_FromStringAndSize((const char *)&report, sizeof report);
}

PyMethodDef command_functions[] = {{"facts", reader_facts, METH_VARARGS, NULL},
    {"shard_lengths", reader_shard_lengths, METH_O, NULL},
    {"index_files", reader_index_files, METH_VARARGS, NULL},
#ifdef BAGS_WITH_SQL
    {"where", reader_where, METH_VARARGS, NULL},
    {"sql", reader_sql, METH_VARARGS, NULL},
#endif
    {"permute", permute, METH_VARARGS, NULL},
    {"derive", run_derive, METH_VARARGS, NULL},
    {"pixels", run_pixels, METH_VARARGS, NULL},
    {"split", run_split, METH_VARARGS, NULL}, {"zip", run_zip, METH_VARARGS, NULL},
    {"copy", run_copy, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
