/* core.h - shared declarations of the extension.
 *     objects.c  errors, and code that readers and writers share
 *     options.c  the members of options, packed by bags/options.py
 *     values.c   converts values and blobs to Python objects, and back
 *     pack.c     the same for msgpack and tree
 *     bag.c      BagReader, BagWriter
 *     reader.c   DatasetReader
 *     writer.c   DatasetWriter
 *     column.c   Column: a field as one buffer
 *     arrow.c    buffers as Arrow structs
 *     loader.c   Loader
 *     pool.c     memory for batches
 *     device.c   tensors on a GPU
 *     far.c      bags._far: mp4 and http, whose libraries load slowly
 *     storage.c  archives, servers, Python file systems
 *     tools.c    functions on datasets, Index
 *     commands.c commands as functions
 *     doors.c    import and export as functions
 *     formats.c  bags._doors: importers and exporters, and their libraries
 *     viewing.c  the server of bags.view
 *     module.c   the module
 *
 * Everything else is in Python: bags/__init__.py has the public classes.
 *
 * The extension uses the stable ABI of CPython 3.11. Its types are heap types that find
 * their module's state. No function keeps a borrowed reference across code that may run
 * Python.
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
    PyTypeObject *source, *opened, *written, *blob, *reader, *storage, *iteration,
        *device;
    PyObject *ndarray, *generic;                 /* of NumPy, when first needed */
    PyObject *contiguous, *exact;                /* of bags.numbers */
    PyObject *dtypes[BAGS_DTYPE_COMPLEX128 + 1]; /* numpy.dtype objects */
    bags_registry *registry;
    bags_registry *inside;  /* for zstd: packed contents stay bytes */
    bags_registry *colours; /* for statistics: PNG palettes are decoded to colours */
    bags_registry *blobs;   /* for copies: zstd gives the blobs inside */
    bags_zstd_options zstd, zstd_blobs;
    bags_jpeg_options jpeg;
    bags_png_options png, colours_png;
    bags_webp_options webp;
} State;

State *state_of(PyTypeObject *type);
bool load_numpy(State *state);
/* Returns false, with an exception, if an array has a mask: masked elements have no
 * values. */
bool without_mask(PyObject *array);
/* Local files with private maps; see map_private. */
const bags_io *map_io(void);
/* Local files without maps, for long operations: signal handlers can run between
 * reads. */
const bags_io *tool_io(void);
/* The codecs of another registry, with options for images. */
typedef struct Codecs {
    bags_registry *registry;
    bags_jpeg_options jpeg;
    bags_png_options png;
    bags_webp_options webp;
    bags_zstd_options zstd;
} Codecs;
/* Set the options of images first. *codecs must not move. False with an exception. */
bool copy_codecs(Codecs *codecs, const bags_registry *from);
void codecs_free(Codecs *codecs);
/* bags._far, imported when first needed. NULL with an exception. */
const Far *load_far(void);
/* Types and functions of the other files. module.c adds them to the module. */
extern PyType_Spec source_spec, opened_spec, written_spec, blob_spec, bag_spec,
    bag_writer_spec, reader_spec, writer_spec, column_spec, loader_spec, storage_spec,
    index_spec, iteration_spec, device_spec;
extern PyMethodDef option_functions[], codec_functions[], arrow_functions[],
    tool_functions[], command_functions[], loader_functions[], door_functions[],
    view_functions[];

/* ---- objects ---- */

/* Run C statements while other Python threads may run. */
#define WITHOUT_GIL(...)                                                               \
    do {                                                                               \
        PyThreadState *saved_thread = PyEval_SaveThread();                             \
        __VA_ARGS__;                                                                   \
        PyEval_RestoreThread(saved_thread);                                            \
    } while (0)
/* Let signal handlers run now and then during long C code that has released the GIL;
 * the current thread acquires it for that. Returns true if a handler raised an
 * exception. Does nothing outside the main thread. */
bool signal_raised(void);
/* The same, for loops: does nothing if this thread called it within the last 50 ms. */
bool signal_raised_sometimes(void);
/* The state of an argument `progress` during one call. Start with {callable or None}. */
typedef struct Progress {
    PyObject *call; /* borrowed; gets the numbers `done` and `total` */
    uint64_t done, total;
    uint64_t read; /* for verify: bytes */
    double last;   /* time of the last call */
    bool called;
    _Atomic bool failed; /* hooks read it without the GIL */
    PyObject *error[3];  /* an exception raised in another thread */
} Progress;
/* Run signal handlers and call the function, but not if this happened within the last
 * 50 ms. Returns false once one of them has raised an exception. For C functions that
 * have released the GIL, called by any thread. progress_note is for functions whose
 * progress cannot end them: their hooks (tool_io) then fail with EINTR. */
bool progress_step(void *user, uint64_t done, uint64_t total);
void progress_note(void *user, uint64_t done, uint64_t total);
/* Call this at the end, with the GIL. If the work succeeded (`good`), the function is
 * called once more unless its last call reported the total. Returns false with an
 * exception if one was raised, here or earlier. */
bool progress_end(Progress *progress, bool good);
/* Acquire a lock while holding the GIL. Waiting releases the GIL. False if a signal
 * handler raised an exception. */
bool lock_or_signal(PyThread_type_lock lock);

#define KEYWORDS(function) (PyCFunction)(void (*)(void)) function

/* Attributes of a variable. AT_END calls a function with the variable's address at the
 * end of its scope. OWNED is for a reference (or NULL) that is released there; the
 * scope must hold the GIL. */
#define AT_END(function) __attribute__((cleanup(function)))
#define OWNED AT_END(release_owned)
static inline void release_owned(void *at) {
    PyObject *object;
    memcpy(&object, at, sizeof object);
    Py_XDECREF(object);
}

/* Replace a reference, then release the old one. */
#define SET(member, object)                                                            \
    do {                                                                               \
        PyObject *old_object = (PyObject *)(member);                                   \
        (member) = (object);                                                           \
        Py_XDECREF(old_object);                                                        \
    } while (0)

/* A number that is different in a child of fork(), like getpid but without a system
 * call. watch_forks updates it; false if out of memory. */
bool watch_forks(void);
unsigned this_process(void);
void *new_object(PyTypeObject *type);
void free_object(PyObject *self);
/* Raise the error of a C call. Returns NULL. `path` is for OSError, and may be NULL. */
PyObject *raise_error(State *state, const bags_error *err, PyObject *path);
/* The same for a path in the file system's encoding. */
PyObject *raise_error_of(State *state, const bags_error *err, const char *path);
/* The same for a message that begins with a path of this size. The path is not
 * translated. */
PyObject *raise_error_at(
    State *state, const bags_error *err, PyObject *path, size_t path_size);
/* If a C call returned an error, or a signal handler raised an exception during the
 * call, returns true with an exception. */
bool call_failed(State *state, bags_code code, const bags_error *err, PyObject *path);
/* If the message begins with this path, returns the size of the path, otherwise 0.
 * `path` may be NULL. */
size_t text_in_message(const char *message, const char *path);
size_t path_in_message(const char *message, PyObject *path);
/* Translate a C message to Python's terms, except for the path at its start. */
void message_of_python(
    const char *message, size_t path_size, char out[BAGS_ERROR_SIZE]);
/* Add the place to an exception: as a note if a user's function raised it, otherwise
 * before the message of a TypeError, ValueError or KeyError. Leaves other exceptions
 * unchanged. */
void place_error(bool note, const char *format, ...);
PyObject *no_pickle(PyObject *self, PyObject *unused);

/* ---- options ---- */

/* {name: (size, {member: (kind, offset)})} for all structs. */
PyObject *option_structs(void);
/* Copy a struct from the bytes that bags/options.py packs. False with an exception. */
bool take_struct(void *to, size_t size, PyObject *bytes);

/* ---- open objects ---- */

/* A row and scratch buffers for one call; see take_row. */
typedef struct Row {
    bags_row row;
    bags_buffer scratch;
    bags_mp4_cache *videos; /* from bags._far, once loaded; otherwise NULL */
    struct Source *source;
} Row;

/* An open reader. Calls and views hold references, so that it lives until the last of
 * them ends, even if the Python object is closed earlier. */
typedef struct Source {
    PyObject_HEAD State *state;
    bags_reader *reader;
    bag_reader *bag;
    Py_buffer memory; /* for a Bag in memory */
    PyObject *path;
    PyObject *storage; /* owns the hooks */
    Row *spare;
} Source;

Source *new_source(State *state, PyObject *path);
/* Open a path with the hooks of a _core.Storage (None: local files). Stores the hooks
 * in *io, a member of the options. `open` must set the reader. NULL with an
 * exception. */
typedef bool (*open_call)(
    Source *source, const char *path, const void *options, bags_error *err);
Source *open_source(State *state, PyObject *path, PyObject *storage, const bags_io **io,
    open_call open, const void *options);
/* Take a row that no other call uses, not even an outer call of the same thread.
 * give_row is called by AT_END. */
Row *take_row(Source *source);
void give_row(Row **row);
void row_clear(Row *row);
void free_row(Row *row);

/* The first members of every object that can be closed. */
typedef struct Field Field;
typedef struct Closable {
    PyObject_HEAD State *state;
    PyObject *path; /* as given; "memory" for a Bag in memory; NULL: not opened */
    Field *fields;  /* for a dataset; sorted by name */
    size_t count;
} Closable;

int closed_error(PyObject *closable); /* sets an exception, and returns -1 */
/* How many datapoints of local files to read at once, so that signals are noticed in
 * between. A remote read takes one round trip, and its hooks notice signals. */
uint64_t read_step(const Source *source, uint64_t count);

/* Call at the start of __init__. Returns false with an exception if the object was
 * already initialized. */
bool begin_init(PyObject *self);
/* Set the fields from a list of (name, type, codec); see field_init. */
bool take_fields(Closable *closable, PyObject *path, PyObject *list);

/* The base of both readers: _core.Reader. */
typedef struct Opened {
    Closable base;
    Source *source; /* NULL: closed */
} Opened;

/* Get the source. The caller must release it. NULL with an exception if it is
 * closed. */
Source *source_of(PyObject *self);
/* Convert an index as a list does. The IndexError names the index. */
bool take_index(Source *source, PyObject *object, uint64_t *index);

/* The base of both writers: _core.Writer. Either `bag` or `dataset` is open. */
typedef struct Arena Arena;
typedef struct Written {
    Closable base;
    bag_writer *bag;
    bags_writer *dataset;
    PyThread_type_lock lock; /* for the members below: one thread at a time */
    unsigned process;        /* this_process() of the creator */
    uint64_t length, size;   /* still valid after closing */
    uint64_t shards, resumed;
    bool running; /* the last shard is not full yet */
    double flush_seconds,
        flushed;  /* for a Bag: as in bags_writer_options; time of the last flush */
    Arena *spare; /* for use by one call at a time */
} Written;

/* Call at the start of __init__, after begin_init. */
bool begin_writer(Written *writer, PyObject *path);
/* Call a C function on an open writer, with the writer locked and without the GIL.
 * `data` is passed to it. False with an exception. */
typedef bags_code (*writer_call)(Written *writer, void *data, bags_error *err);
bool call_writer(PyObject *self, writer_call call, void *data);
/* `which` selects the number: l for length, s for size, n for shards, r for resumed. */
uint64_t written_number(Written *writer, char which);
/* A getter. *which is as above. */
PyObject *written_get(PyObject *self, void *which);

/* Create a bytes-like object with a read-only buffer that keeps the owner alive. */
PyObject *new_blob(State *state, PyObject *owner, const void *data, size_t size);
PyObject *new_bytes(bags_view bytes);
/* Create a read-only memoryview. `borrowed`: the bytes are valid as long as the owner
 * lives. */
PyObject *new_view(State *state, PyObject *owner, bags_view bytes, bool borrowed);
/* Create a numpy.ndarray in the same way. */
PyObject *new_array(State *state, PyObject *owner, const bags_value *value,
    bool borrowed, bool writable);
/* column.c: the items of a sequence of type int in a row's first slot, as int64. */
PyObject *integer_items(
    Source *source, const bags_select *select, uint64_t index, Row *row);
/* Create an array over an object with a buffer. Passes on NULL. */
PyObject *array_over(State *state, const bags_value *value, PyObject *data);

/* ---- codecs ---- */

typedef enum How { /* how blobs are converted to values, and back */
    HOW_BYTES,
    HOW_CALL, /* a function of the user */
    HOW_UTF8,
    HOW_INT,
    HOW_ARRAY, /* a type that states dtype and shape */
    HOW_MSGPACK,
    HOW_TREE,
    HOW_COMPRESSED, /* zstd(...) of a type whose own How is `inside` */
    HOW_VALUE       /* anything else that the C codecs return */
} How;

/* A field of a dataset, and its codec. */
struct Field {
    PyObject *name, *text;  /* interned; the type as str */
    PyObject *given;        /* for HOW_CALL; otherwise NULL */
    char *name_utf8, *type; /* the type without [] */
    How how, inside;
    bool sequence, is_signed, is_u64, big;
    bool numbers; /* an array type: plain numbers and lists are arrays of it */
    bool video;   /* mp4 or webm, decoded by our own codec */
    size_t size;  /* of a blob, for HOW_INT, and for HOW_ARRAY if the type fixes it */
    bags_dtype dtype;
    size_t dims;
    uint64_t shape[BAGS_MAX_DIMS];
};

/* Initialize a field. `codec` is NULL or True for our own codec; ... for our own, or
 * bytes if there is none; None for bytes; otherwise a function. Returns -1 with an
 * exception. */
int field_init(
    State *state, Field *field, const char *name, const char *type, PyObject *codec);
void field_clear(Field *field);

/* A Python object being written by C. */
typedef struct Held {
    PyObject *object;
    Py_buffer *buffer;
} Held;
struct Arena {
    bags_value *values;
    Held *held;
    size_t count, room, kept; /* kept: number not in foreign buffers */
};
/* Add an object's value to the arena. Returns -1 with an exception. */
int arena_add(State *state, Arena *arena, const Field *field, PyObject *object);
/* Copy values out of foreign buffers before user code runs that may change them, such
 * as a generator that reuses one array. Returns -1 with an exception. */
int arena_keep(Arena *arena);
/* The same without a field, for an int, a str, bytes or an array. */
int arena_any(State *state, Arena *arena, PyObject *object);
/* int_value converts an int; take_bytes gets the buffer of an object with bytes. Both
 * return -1 with an exception. */
int int_value(bags_value *value, PyObject *object);
int take_bytes(PyObject *object, Py_buffer *buffer);
/* The UTF-8 form of a str, valid as long as the str. NULL with an exception. */
const char *take_utf8(PyObject *text, Py_ssize_t *size);
void arena_reset(Arena *arena);
void arena_free(Arena *arena);

/* Decode a blob. `row`, slot and item state where it came from; slot is SIZE_MAX if it
 * did not come from a reader. */
PyObject *decode(State *state, const Field *field, bags_view blob, PyObject *owner,
    Row *row, size_t slot, size_t item, uint64_t datapoint);

/* ---- from other files ---- */

/* Memory for batches. pool_take returns a block; it goes back to the pool when it is no
 * longer needed, even if the pool was closed. Free blocks are kept up to the configured
 * limit. */
typedef struct Pool Pool;
Pool *pool_open(void);                    /* NULL if out of memory */
void *pool_take(Pool *pool, size_t size); /* NULL if out of memory */
void pool_give(void *data);
void pool_limit(Pool *pool, size_t size);
void pool_close(Pool *pool); /* NULL is accepted */

/* Take over tensor number i, on a GPU, of a batch. NULL with an exception. */
PyObject *new_device_tensor(State *state, bags_cuda *cuda, bags_loader *loader,
    const bags_batch *batch, size_t i);

/* msgpack or tree: pack converts an object to bytes; the other function converts a
 * msgpack_object to an object. */
PyObject *pack(State *state, PyObject *object, bool tree);
PyObject *unpack(State *state, const void *object, bool tree);

/* The functions of this build for a loader of images. In loader.c. */
extern const bags_loader_images loader_images;

/* Get the source of an open DatasetReader. The caller must release it. */
Source *reader_source_of(State *state, PyObject *reader);
/* The hooks of a _core.Storage; for None, `local`. NULL with an exception. */
const bags_io *storage_io(State *state, PyObject *storage, const bags_io *local);
/* The server of a _core.Storage, for copies. False, without an exception, if it has
 * none. */
bool storage_objects(State *state, PyObject *storage, bags_copy_objects *out);
/* True in a signal handler that runs while this thread waits for the storage, whose
 * readers are locked then. */
bool storage_waits(const PyObject *storage);
/* Call this when only announced reads remain. Waiting for them is then interrupted. */
void storage_end(State *state, PyObject *storage);
/* The dtype for a buffer's format, in the syntax of the struct module. */
bags_dtype buffer_dtype(const Py_buffer *buffer);

#endif
