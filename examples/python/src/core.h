/*
 * core.h - what the parts of the extension share.
 *
 *     values.c   Python objects, values and blobs; errors
 *     bag.c      BagReader, BagWriter
 *     reader.c   DatasetReader
 *     writer.c   DatasetWriter
 *     column.c   a field as one array: buffer, DLPack, Arrow
 *     loader.c   Loader
 *     far.c      bags._far, with mp4 and http, whose libraries take long to load
 *     storage.c  archives, servers, file systems of Python
 *     tools.c    functions on datasets, Index
 *     module.c   the module, and functions on datasets
 *
 * The stable ABI of CPython 3.11. Types are heap types that find the state of their
 * module; no function keeps a borrowed reference across code that may run Python.
 */
#ifndef BAGS_PYTHON_CORE_H
#define BAGS_PYTHON_CORE_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "far.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(Py_ssize_t) == sizeof(uint64_t), "a 64-bit system");

/* ---- the module ---- */

typedef struct State {
    PyTypeObject *source, *blob, *codec, *column, *bag_reader, *reader, *storage,
        *index;
    PyObject *data_error;
    PyObject *ndarray, *asarray;                 /* of NumPy, when first needed */
    PyObject *dtypes[BAGS_DTYPE_COMPLEX128 + 1]; /* numpy.dtype objects */
    bags_registry *registry;
    bags_zstd_options zstd;
} State;

State *state_of(PyTypeObject *type);
bool load_numpy(State *state);
/* Local files, with private maps: see map_private. */
const bags_io *map_io(void);
/* bags._far, imported when first needed; NULL with an exception. */
const Far *load_far(void);
/* Types: each file adds its own. */
int add_values(PyObject *module, State *state);
int add_bag(PyObject *module, State *state);
int add_reader(PyObject *module, State *state);
int add_writer(PyObject *module, State *state);
int add_column(PyObject *module, State *state);
int add_storage(PyObject *module, State *state);
int add_tools(PyObject *module, State *state);
int add_loader(PyObject *module, State *state);
PyTypeObject *add_type(PyObject *module, PyType_Spec *spec, bool visible);

/* ---- objects ---- */

/* Run statements of C while other Python threads run. */
#define WITHOUT_GIL(...)                                                               \
    do {                                                                               \
        PyThreadState *saved_thread = PyEval_SaveThread();                             \
        __VA_ARGS__;                                                                   \
        PyEval_RestoreThread(saved_thread);                                            \
    } while (0)
#define KEYWORDS(function) (PyCFunction)(void (*)(void)) function

/* Replace a reference, before the old one is released. */
#define SET(member, object)                                                            \
    do {                                                                               \
        PyObject *old_object = (PyObject *)(member);                                   \
        (member) = (object);                                                           \
        Py_XDECREF(old_object);                                                        \
    } while (0)

/* How the objects begin that can be closed. */
typedef struct Closable {
    PyObject_HEAD State *state;
    PyObject *path; /* as it was given; of a Bag in memory "memory"; NULL: not opened */
} Closable;

/* A number that a child of fork() does not have: getpid without a system call. */
unsigned this_process(void);
void *new_object(PyTypeObject *type);
void free_object(PyObject *self);
/* Raise what a call of C returned. NULL. path: for OSError; may be NULL. */
PyObject *raise_error(State *state, const bags_error *err, PyObject *path);
int closed_error(PyObject *closable); /* -1 */
/* Say where a TypeError or ValueError of a conversion is from: PATH: field "F": OPTION:
 * ... The last two may be NULL. Other exceptions stay. */
void locate_error(PyObject *path, const char *field, const char *option);
/* For "O&". */
extern const char *const unfinished_names[]; /* refuse, skip, read */
int unfinished_converter(PyObject *object, void *out);
int number_converter(PyObject *object, void *out); /* uint64_t */
/* For pickle: an object of the same class, on which base.__init__ was called with these
 * arguments, and which has the same __dict__. */
PyObject *rebuild(PyObject *self, PyObject *base, PyObject *args, PyObject *kwargs);
PyObject *copy_object(PyObject *self, PyObject *unused);
PyObject *no_pickle(PyObject *self, PyObject *unused);
PyObject *enter(PyObject *self, PyObject *unused);
PyObject *leave(PyObject *self, PyObject *args);

/* A row and a scratch for one call; see take_row. */
typedef struct Row {
    bags_row row;
    bags_buffer scratch;
} Row;

/* An open reader. Calls and views hold a reference, so that it lives until the last of
 * them has gone, whoever closes the Python object. */
typedef struct Source {
    PyObject_HEAD State *state;
    bags_reader *reader;
    bag_reader *bag;
    Py_buffer memory; /* of a Bag in memory */
    PyObject *path;
    PyObject *storage; /* of its hooks */
    Row *spare;
} Source;

Source *new_source(State *state, PyObject *path);
/* A row that no other call uses, also one of the same thread further up. */
Row *take_row(Source *source);
void give_row(Source *source, Row *row);
void free_row(Row *row);

/* How both readers begin. */
typedef struct Opened {
    PyObject_HEAD State *state;
    PyObject *path;
    Source *source;          /* NULL: closed */
    PyObject *args, *kwargs; /* of __init__, for pickle; of a DatasetReader args is the
                                absolute path */
} Opened;

/* The source, which the caller releases; NULL with an exception if it is closed. */
Source *source_of(PyObject *self);
PyObject *close_source(PyObject *self, PyObject *unused);
PyObject *is_source_closed(PyObject *self, void *unused);
/* What a path is in a pickle: after chdir it still leads there. */
PyObject *pickled_path(PyObject *path, PyObject *storage);
/* An index as of a list: IndexError names it. */
bool take_index(Source *source, PyObject *object, uint64_t *index);

/* How both writers begin. */
typedef struct Written {
    PyObject_HEAD State *state;
    PyObject *path;
    void *writer;            /* of C; NULL: closed */
    PyThread_type_lock lock; /* one thread at a time */
    unsigned process;        /* this_process() */
    uint64_t length, size;   /* kept when it is closed */
} Written;

/* Call a function of C for an open writer, alone and without the GIL. False with an
 * exception. `data` is for the function. */
typedef bags_code (*writer_call)(Written *writer, void *data, bags_error *err);
bool call_writer(PyObject *self, writer_call call, void *data);
/* Close it, with a function that sets length and size, and `writer` to NULL. */
PyObject *close_writer(PyObject *self, writer_call close);
PyObject *is_writer_closed(PyObject *self, void *unused);

/* Bytes that keep their owner alive; they export a read-only buffer. */
PyObject *new_blob(State *state, PyObject *owner, const void *data, size_t size);
/* A read-only memoryview. `borrowed`: the bytes are valid as long as the owner lives. */
PyObject *new_view(State *state, PyObject *owner, bags_view bytes, bool borrowed);
/* A numpy.ndarray; the same. */
PyObject *new_array(State *state, PyObject *owner, const bags_value *value,
    bool borrowed, bool writable);

/* ---- codecs ---- */

typedef enum How { /* a blob becomes a value, and back */
    HOW_MISSING,   /* KeyError when it is used */
    HOW_BYTES,
    HOW_CALL, /* a function of the user */
    HOW_UTF8,
    HOW_INT,
    HOW_ARRAY, /* a type that states dtype and shape */
    HOW_MSGPACK,
    HOW_TREE,
    HOW_COMPRESSED, /* zstd(...) of a type with a how of its own, `inside` */
    HOW_VALUE       /* what else the codecs of C return */
} How;

/* A field of a dataset, and its codec. */
typedef struct Field {
    PyObject *name, *text;  /* interned; the type as str */
    PyObject *given, *key;  /* what the user passed, and under which key; or NULL */
    PyObject *args;         /* of the type, for HOW_CALL; or NULL */
    char *name_utf8, *type; /* the type without [] */
    How how, inside;
    bool sequence, is_signed, big;
    size_t size; /* of a blob: of HOW_INT and HOW_ARRAY, if the type fixes it */
    bags_dtype dtype;
    size_t dims;
    uint64_t shape[BAGS_MAX_DIMS];
} Field;

/* Fill a field. codecs: NULL: our own; None: bytes. Returns -1 with an exception. */
int field_init(State *state, Field *field, const char *name, const char *type,
    PyObject *codecs, bool decode);
void field_clear(Field *field);
int field_visit(Field *field, visitproc visit, void *arg);
/* The codecs that fields use, of those that the user passed. */
PyObject *fields_codecs(const Field *fields, size_t count);
PyObject *fields_spec(const Field *fields, size_t count);

/* What a Python object is while C writes it. */
typedef struct Held {
    PyObject *object;
    Py_buffer *buffer;
} Held;
typedef struct Arena {
    bags_value *values;
    Held *held;
    size_t count, room;
} Arena;
/* Add the value of an object. Returns -1 with an exception. */
int arena_add(State *state, Arena *arena, const Field *field, PyObject *object);
void arena_reset(Arena *arena);
void arena_free(Arena *arena);

/* Decode a blob. `row`, slot and item say where it came from: NULL, of no reader. */
PyObject *decode(State *state, const Field *field, bags_view blob, PyObject *owner,
    Row *row, size_t slot, size_t item);

/* ---- from other files ---- */

/* msgpack, or a tree: bytes of an object, and the object of a blob. */
PyObject *pack(State *state, PyObject *object, bool tree);
PyObject *unpack(
    State *state, const Field *field, bags_view blob, bags_buffer *scratch);

/* The source of a DatasetReader that is open, which the caller releases. */
Source *reader_source_of(State *state, PyObject *reader);
/* The hooks that a path needs, in *io, and the object that keeps them; NULL with an
 * exception. `object`: None, options of http as a dict, or a file system of fsspec. */
PyObject *open_storage(
    State *state, const char *path, PyObject *object, const bags_io **io);
const bags_io *storage_io(PyObject *storage);
PyObject *open_index(Source *source, const char *path, size_t field, const bags_io *io);
PyObject *make_column(Source *source, const Field *field, size_t number);
PyObject *make_stream(Source *source, const Field *fields, size_t count);

#endif
