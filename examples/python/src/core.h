/* core.h - shared declarations of the extension.
 *     objects.c  errors, and code that readers and writers share
 *     options.c  the members of options, packed by bags/options.py
 *     values.c   values and blobs as Python objects, and back
 *     pack.c     the same for msgpack and tree
 *     bag.c      BagReader, BagWriter
 *     reader.c   DatasetReader
 *     writer.c   DatasetWriter
 *     column.c   Column: a field as one buffer
 *     arrow.c    buffers as structs of Arrow
 *     loader.c   Loader
 *     pool.c     the memory of its batches
 *     far.c      bags._far, with mp4 and http: their libraries load slowly
 *     storage.c  archives, servers, file systems of Python
 *     tools.c    functions on datasets, Index
 *     module.c   the module
 *
 * Everything else is Python: bags/__init__.py has the public classes.
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
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(Py_ssize_t) == sizeof(uint64_t), "a 64-bit system");

/* ---- the module ---- */

typedef struct State { /* objects first: see STATE_COUNT */
    PyObject *data_error;
    PyTypeObject *source, *opened, *written, *blob, *reader, *storage, *iteration;
    PyObject *ndarray, *asarray;                 /* of NumPy, when first needed */
    PyObject *dtypes[BAGS_DTYPE_COMPLEX128 + 1]; /* numpy.dtype objects */
    bags_registry *registry;
    bags_registry *inside;  /* of zstd: what is packed are bytes */
    bags_registry *colours; /* of statistics: palettes of PNG are colours */
    bags_zstd_options zstd;
    bags_png_options png;
} State;

State *state_of(PyTypeObject *type);
bool load_numpy(State *state);
/* False, with an exception: elements behind a mask have no values. */
bool without_mask(PyObject *array);
/* Local files, with private maps: see map_private. */
const bags_io *map_io(void);
/* Local files without maps, for long operations: signal handlers run between reads. */
const bags_io *tool_io(void);
/* bags._far, imported when first needed; NULL with an exception. */
const Far *load_far(void);

/* Load them if values of this type are videos. False with an exception. */
bool load_far_for(const bags_type *type);
/* Types and functions of the other files. module.c adds them to the module. */
extern PyType_Spec source_spec, opened_spec, written_spec, blob_spec, bag_spec,
    bag_writer_spec, reader_spec, writer_spec, column_spec, loader_spec, storage_spec,
    index_spec, iteration_spec;
extern PyMethodDef option_functions[], codec_functions[], arrow_functions[],
    tool_functions[];

/* ---- objects ---- */

/* Run statements of C while other Python threads run. */
#define WITHOUT_GIL(...)                                                               \
    do {                                                                               \
        PyThreadState *saved_thread = PyEval_SaveThread();                             \
        __VA_ARGS__;                                                                   \
        PyEval_RestoreThread(saved_thread);                                            \
    } while (0)
/* Let handlers of signals run, from time to time, in C that runs without the GIL: with it in
 * this thread. True: one raised, and its exception is set. Nothing happens in other threads
 * than the main one. */
bool signal_raised(void);
/* The same for loops: if this thread did not call it in the last 50 ms. */
bool signal_raised_sometimes(void);
/* Acquire a lock, with the GIL held. Waiting releases the GIL. False: a handler
 * raised. */
bool lock_or_signal(PyThread_type_lock lock);

#define KEYWORDS(function) (PyCFunction)(void (*)(void)) function

/* Before a variable: call a function with its address at the end of its scope. OWNED: a
 * reference, or NULL, that is released there; the scope must have the GIL. */
#define AT_END(function) __attribute__((cleanup(function)))
#define OWNED AT_END(release_owned)
static inline void release_owned(void *at) {
    PyObject *object;
    memcpy(&object, at, sizeof object);
    Py_XDECREF(object);
}

/* Replace a reference, before the old one is released. */
#define SET(member, object)                                                            \
    do {                                                                               \
        PyObject *old_object = (PyObject *)(member);                                   \
        (member) = (object);                                                           \
        Py_XDECREF(old_object);                                                        \
    } while (0)

/* A number that differs in a child of fork(): getpid without a system call. watch_forks
 * changes it, and returns false if memory is short. */
bool watch_forks(void);
unsigned this_process(void);
void *new_object(PyTypeObject *type);
void free_object(PyObject *self);
/* Raise the error of a call of C. Returns NULL. path: for OSError; may be NULL. */
PyObject *raise_error(State *state, const bags_error *err, PyObject *path);
/* The message begins with a path of this size. It is not translated. */
PyObject *raise_error_at(
    State *state, const bags_error *err, PyObject *path, size_t path_size);
/* True with an exception if a call of C returned an error, or if a signal handler
 * raised during the call. */
bool call_failed(State *state, bags_code code, const bags_error *err, PyObject *path);
/* The size of a path that a message begins with, or 0; it may be NULL. */
size_t text_in_message(const char *message, const char *path);
size_t path_in_message(const char *message, PyObject *path);
/* A message of C in the words of Python, but for the path that it begins with. */
void message_of_python(
    const char *message, size_t path_size, char out[BAGS_ERROR_SIZE]);
/* Add the place to an exception: in a note if a function of the user raised it,
 * otherwise before the message of a TypeError, ValueError or KeyError. Other exceptions
 * are unchanged. */
void place_error(bool note, const char *format, ...);
PyObject *no_pickle(PyObject *self, PyObject *unused);

/* ---- options ---- */

/* {name: (size, {member: (kind, offset)})} of all structs. */
PyObject *option_structs(void);
/* The bytes of a struct, as bags/options.py packs them; false with an exception. */
bool take_struct(void *to, size_t size, PyObject *bytes);

/* ---- open objects ---- */

/* A row and a scratch for one call; see take_row. */
typedef struct Row {
    bags_row row;
    bags_buffer scratch;
    bags_mp4_cache *videos; /* of bags._far, once loaded; or NULL */
    struct Source *source;
} Row;

/* An open reader. Calls and views hold references, so it lives until the last of them
 * ends, even if the Python object is closed. */
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
/* Open a path with the hooks of a _core.Storage (None: local files). Stores the hooks
 * in *io, a member of the options. `open` sets the reader. NULL with an exception. */
typedef bool (*open_call)(
    Source *source, const char *path, const void *options, bags_error *err);
Source *open_source(State *state, PyObject *path, PyObject *storage, const bags_io **io,
    open_call open, const void *options);
/* A row that no other call uses, also one of the same thread further up; give_row is
 * called AT_END. */
Row *take_row(Source *source);
void give_row(Row **row);
void row_clear(Row *row);
void free_row(Row *row);

/* How the objects begin that can be closed. */
typedef struct Field Field;
typedef struct Closable {
    PyObject_HEAD State *state;
    PyObject *path; /* as it was given; of a Bag in memory "memory"; NULL: not opened */
    Field *fields;  /* of a dataset, sorted by name */
    size_t count;
} Closable;

int closed_error(PyObject *closable); /* -1 */
/* Datapoints of local files per read, so that signals are noticed in between. Remote
 * reads take one round trip, and their hooks notice signals. */
uint64_t read_step(const Source *source, uint64_t count);

/* At the start of __init__; false with an exception if it was called before. */
bool begin_init(PyObject *self);
/* Its fields, of a list of (name, type, codec): see field_init. */
bool take_fields(Closable *closable, PyObject *path, PyObject *list);

/* The base of both readers: _core.Reader. */
typedef struct Opened {
    Closable base;
    Source *source; /* NULL: closed */
} Opened;

/* The source; the caller releases it. NULL with an exception if it is closed. */
Source *source_of(PyObject *self);
/* An index as of a list: IndexError names it. */
bool take_index(Source *source, PyObject *object, uint64_t *index);

/* The base of both writers: _core.Writer. One of both is open. */
typedef struct Arena Arena;
typedef struct Written {
    Closable base;
    bag_writer *bag;
    bags_writer *dataset;
    PyThread_type_lock lock; /* of what follows: one thread at a time */
    unsigned process;        /* this_process() */
    uint64_t length, size;   /* kept when it is closed */
    uint64_t shards, resumed;
    bool running; /* the last shard is not full */
    double flush_seconds,
        flushed;  /* of a Bag: as in bags_writer_options; the last time */
    Arena *spare; /* of one call at a time */
} Written;

/* At the start of __init__, after begin_init. */
bool begin_writer(Written *writer, PyObject *path);
/* Call a C function for an open writer, without the GIL and with the writer locked.
 * False with an exception. `data` is for the function. */
typedef bags_code (*writer_call)(Written *writer, void *data, bags_error *err);
bool call_writer(PyObject *self, writer_call call, void *data);
/* which: l: length, s: size, n: shards, r: resumed. */
uint64_t written_number(Written *writer, char which);
/* A getter: *which as above. */
PyObject *written_get(PyObject *self, void *which);

/* Bytes that keep their owner alive; they export a read-only buffer. */
PyObject *new_blob(State *state, PyObject *owner, const void *data, size_t size);
PyObject *new_bytes(bags_view bytes);
/* A read-only memoryview. `borrowed`: the bytes are valid as long as the owner lives. */
PyObject *new_view(State *state, PyObject *owner, bags_view bytes, bool borrowed);
/* A numpy.ndarray; the same. */
PyObject *new_array(State *state, PyObject *owner, const bags_value *value,
    bool borrowed, bool writable);
/* One over an object with a buffer; NULL is passed on. */
PyObject *array_over(State *state, const bags_value *value, PyObject *data);

/* ---- codecs ---- */

typedef enum How { /* a blob becomes a value, and back */
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
struct Field {
    PyObject *name, *text;  /* interned; the type as str */
    PyObject *given;        /* of HOW_CALL; otherwise NULL */
    char *name_utf8, *type; /* the type without [] */
    How how, inside;
    bool sequence, is_signed, big;
    bool video;  /* mp4 or webm, and our own codec */
    size_t size; /* of a blob: of HOW_INT and HOW_ARRAY, if the type fixes it */
    bags_dtype dtype;
    size_t dims;
    uint64_t shape[BAGS_MAX_DIMS];
};

/* Fill a field. codec: NULL or True: our own; ...: our own, or bytes if there is none;
 * None: bytes; otherwise a function. Returns -1 with an exception. */
int field_init(
    State *state, Field *field, const char *name, const char *type, PyObject *codec);
void field_clear(Field *field);

/* A Python object that C is writing. */
typedef struct Held {
    PyObject *object;
    Py_buffer *buffer;
} Held;
struct Arena {
    bags_value *values;
    Held *held;
    size_t count, room, kept; /* kept: so many are not in buffers of others */
};
/* Add the value of an object. Returns -1 with an exception. */
int arena_add(State *state, Arena *arena, const Field *field, PyObject *object);
/* Copy values out of foreign buffers before user code runs that may change them, such
 * as a generator that reuses one array. Returns -1 with an exception. */
int arena_keep(Arena *arena);
/* Of no field: an int, a str, bytes or an array. */
int arena_any(State *state, Arena *arena, PyObject *object);
/* An int, and the buffer of an object with bytes. Return -1 with an exception. */
int int_value(bags_value *value, PyObject *object);
int take_bytes(PyObject *object, Py_buffer *buffer);
/* The UTF-8 of a str, valid as long as the str; NULL with an exception. */
const char *take_utf8(PyObject *text, Py_ssize_t *size);
void arena_reset(Arena *arena);
void arena_free(Arena *arena);

/* Decode a blob of a datapoint. `row`, slot and item say where it came from; slot SIZE_MAX:
 * of no reader. */
PyObject *decode(State *state, const Field *field, bags_view blob, PyObject *owner,
    Row *row, size_t slot, size_t item, uint64_t datapoint);

/* ---- from other files ---- */

/* The memory of batches. A block is taken, and given back when it is no longer needed, also
 * after the pool was closed. Free blocks of up to the largest limit are kept. */
typedef struct Pool Pool;
Pool *pool_open(void);                    /* NULL if out of memory */
void *pool_take(Pool *pool, size_t size); /* the same */
void pool_give(void *data);
void pool_limit(Pool *pool, size_t size);
void pool_close(Pool *pool); /* NULL is accepted */

/* msgpack, or a tree: bytes of an object, and the object of a msgpack_object. */
PyObject *pack(State *state, PyObject *object, bool tree);
PyObject *unpack(State *state, const void *object, bool tree);

/* The source of an open DatasetReader; the caller releases it. */
Source *reader_source_of(State *state, PyObject *reader);
/* The hooks of a _core.Storage, or of None: `local`. NULL with an exception. */
const bags_io *storage_io(State *state, PyObject *storage, const bags_io *local);
/* True in a signal handler that runs while this thread waits for the storage: its
 * readers are locked. */
bool storage_waits(const PyObject *storage);
/* Nothing but what was announced is read from now on. */
void storage_end(State *state, PyObject *storage);
/* The dtype of a buffer's format, in the syntax of struct. */
bags_dtype buffer_dtype(const Py_buffer *buffer);

#endif
