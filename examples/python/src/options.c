/* options.c - the members of option and report structs. bags/options.py writes and
 * reads the structs as bytes. Their contents are trusted: nothing else creates them. */
#include "core.h"

#include "doors.h"

/* `kind` is a format of Python's struct module; "!" for a bool with the opposite
 * meaning; "dtype"; "start" for an item or 'random'; or the names of an enum's values
 * in order. */
typedef struct Member {
    const char *name, *kind;
    size_t offset;
} Member;
#define MEMBER(kind, type, name)                                                       \
    { #name, kind, offsetof(type, name) }
/* An option that bags/loader.py handles itself, without pack(). */
#define OTHER(name)                                                                    \
    { #name, "", 0 }
#define AS(name, kind, type, member)                                                   \
    { name, kind, offsetof(type, member) }
/* Worker W of K. shard_stop is C's name for shard_step. */
#define WORKER(type)                                                                   \
    MEMBER("Q", type, shard_start), MEMBER("Q", type, shard_stop),                     \
        AS("shard_step", "Q", type, shard_stop)
#define UNFINISHED(type) MEMBER("refuse skip read", type, unfinished)

#define BAG(kind, name) MEMBER(kind, bag_reader_options, name)
static const Member bag_in[] = {BAG("?", cache_index), BAG("?", no_mmap),
    BAG("?", allow_empty_file), UNFINISHED(bag_reader_options),
    BAG("?", verify_checksums), {0}};

static const Member bag_out[] = {MEMBER("?", bag_writer_options, keep_idx),
    AS("sync", "!", bag_writer_options, no_sync),
    MEMBER("?", bag_writer_options, checksum), {0}};

#define READER(kind, name) MEMBER(kind, bags_reader_options, name)
static const Member reader[] = {READER("?", cache_index), WORKER(bags_reader_options),
    READER("?", no_mmap), UNFINISHED(bags_reader_options), READER("?", allow_gaps),
    READER("?", verify_checksums), READER("?", no_read_ahead), READER("Q", max_files),
    {0}};

#define WRITER(kind, name) MEMBER(kind, bags_writer_options, name)
static const Member writer[] = {WRITER("Q", shard_size), WRITER("Q", shard_length),
    WORKER(bags_writer_options), WRITER("refuse resume append", existing),
    WRITER("?", checksum), WRITER("?", keep_idx), WRITER("d", flush_seconds),
    AS("sync", "!", bags_writer_options, no_sync), {0}};

static const Member recover[] = {MEMBER("?", bags_recover_options, dry_run),
    MEMBER("?", bags_recover_options, keep_idx),
    MEMBER("?", bags_recover_options, drop_partial),
    AS("sync", "!", bags_recover_options, no_sync), WORKER(bags_recover_options), {0}};
#define RECOVERED(name) MEMBER("Q", bags_recover_report, name)
static const Member recovered[] = {RECOVERED(finished_before), RECOVERED(finished_now),
    RECOVERED(removed), RECOVERED(locked), RECOVERED(failed), RECOVERED(length),
    RECOVERED(truncated), {0}};

#define VERIFY(kind, name) MEMBER(kind, bags_verify_options, name)
static const Member verify[] = {VERIFY("?", quick), VERIFY("?", decode),
    VERIFY("?", allow_gaps), VERIFY("?", allow_empty_file),
    UNFINISHED(bags_verify_options), WORKER(bags_verify_options),
    VERIFY("Q", max_faults), {0}};

static const Member derive[] = {
    WORKER(bags_derive_options), AS("sync", "!", bags_derive_options, no_sync), {0}};
#define DERIVED(name) MEMBER("Q", bags_derive_report, name)
static const Member derived[] = {DERIVED(shards), DERIVED(length), DERIVED(linked),
    DERIVED(made), DERIVED(missing), {0}};

#define COPIED(name) MEMBER("Q", bags_copy_report, name)
static const Member copied[] = {COPIED(copied), COPIED(kept), COPIED(size), {0}};

#define SOURCE(kind, name) MEMBER(kind, bags_source_options, name)
static const Member source[] = {SOURCE("detect rows episodes", layout),
    SOURCE("detect yes no", header), SOURCE("dtype", dtype), SOURCE("?", has_separator),
    SOURCE("Q", separator), SOURCE("Q", document), SOURCE("?", class_numbers),
    SOURCE("?", skip_damaged), SOURCE("?", decode), {0}};

#define EXPORT(kind, name) MEMBER(kind, bags_export_options, name)
static const Member exported[] = {EXPORT("Q", shard_size), EXPORT("Q", shard_length),
    WORKER(bags_export_options), EXPORT("rows episodes", layout), EXPORT("d", fps),
    EXPORT("?", resume), AS("sync", "!", bags_export_options, no_sync), {0}};

static const Member checksum[] = {MEMBER("?", bags_checksum_options, replace),
    AS("sync", "!", bags_checksum_options, no_sync), WORKER(bags_checksum_options),
    {0}};
#define SUMMED(name) MEMBER("Q", bags_checksum_report, name)
static const Member checksummed[] = {
    SUMMED(made), SUMMED(kept), SUMMED(blobs), SUMMED(size), {0}};

#define ORDER(kind, name) AS(#name, kind, bags_loader_options, order.name)
#define LOADER(kind, name) MEMBER(kind, bags_loader_options, name)
static const Member loader[] = {LOADER("I", batch), ORDER("Q", seed),
    AS("shuffle", "!", bags_loader_options, order.in_order), ORDER("Q", chunk),
    ORDER("Q", window), LOADER("?", drop_last), LOADER("I", rank), LOADER("I", ranks),
    LOADER("i", threads), LOADER("I", ahead), LOADER("?", skip_damaged),
    LOADER("?", prefetch), LOADER("start", window_start), ORDER("Q", take),
    ORDER("?", replacement), OTHER(fields), OTHER(weights), OTHER(rows), OTHER(sampler),
    OTHER(tokens), OTHER(frames), OTHER(pad), OTHER(same_draw), OTHER(device), {0}};

#define FRAMES(kind, name) MEMBER(kind, bags_frames_options, name)
static const Member frames[] = {FRAMES("d", rate), FRAMES("edge drop", pad),
    FRAMES("?", same_draw), OTHER(clock), OTHER(times), {0}};

#define FIELD(kind, name) MEMBER(kind, bags_load_field, name)
static const Member field[] = {FIELD("I", width), FIELD("I", height),
    FIELD("I", channels), FIELD("none center random", crop), FIELD("I", resize),
    FIELD("bilinear bicubic nearest", filter), FIELD("2d", area), FIELD("2d", aspect),
    FIELD("d", flip_x), FIELD("d", flip_y), FIELD("?", nchw), FIELD("?", scaled),
    FIELD("?", orient), FIELD("?", matrix), FIELD("3f", mean), FIELD("3f", std),
    FIELD("Q", window), FIELD("Q", stride), FIELD("dtype", dtype), FIELD("d", rate),
    FIELD("?", has_tolerance), FIELD("d", tolerance), OTHER(offsets), OTHER(seconds),
    OTHER(times), OTHER(shape), OTHER(warp), OTHER(jitter), OTHER(decode), OTHER(draw),
    {0}};

#define WARP(kind, name) MEMBER(kind, bags_warp_options, name)
static const Member warp[] = {WARP("2d", degrees), WARP("2d", scale),
    WARP("2d", shear_x), WARP("2d", shear_y), WARP("2d", translate_x),
    WARP("2d", translate_y), WARP("d", perspective), WARP("3B", fill), {0}};

#define JITTER(name) MEMBER("2d", bags_jitter_options, name)
static const Member jitter[] = {
    JITTER(brightness), JITTER(contrast), JITTER(saturation), JITTER(hue), {0}};

#define DRAW(name, kind, member) AS(name, kind, bags_load_draw, member)
static const Member draw[] = {DRAW("matrix", "9d", matrix),
    DRAW("brightness", "d", jitter.brightness), DRAW("contrast", "d", jitter.contrast),
    DRAW("saturation", "d", jitter.saturation), DRAW("hue", "d", jitter.hue),
    DRAW("order", "4B", jitter.order), DRAW("mean", "3f", mean), DRAW("std", "3f", std),
    {0}};

#define TOKENS(kind, name) MEMBER(kind, bags_tokens_options, name)
static const Member tokens[] = {TOKENS("Q", length), TOKENS("Q", stride),
    TOKENS("?", pack), TOKENS("?", places), TOKENS("dtype", stored),
    TOKENS("dtype", dtype), TOKENS("?", has_bos), TOKENS("?", has_eos),
    TOKENS("I", bos), TOKENS("I", eos), TOKENS("split drop", long_documents),
    OTHER(field), OTHER(parallel), {0}};

static const struct Struct {
    const char *name;
    size_t size;
    const Member *members;
} structs[] = {{"bag reader", sizeof(bag_reader_options), bag_in},
    {"bag writer", sizeof(bag_writer_options), bag_out},
    {"reader", sizeof(bags_reader_options), reader},
    {"writer", sizeof(bags_writer_options), writer},
    {"recover", sizeof(bags_recover_options), recover},
    {"recover report", sizeof(bags_recover_report), recovered},
    {"verify", sizeof(bags_verify_options), verify},
    {"derive", sizeof(bags_derive_options), derive},
    {"derive report", sizeof(bags_derive_report), derived},
    {"copy report", sizeof(bags_copy_report), copied},
    {"source", sizeof(bags_source_options), source},
    {"export", sizeof(bags_export_options), exported},
    {"checksum", sizeof(bags_checksum_options), checksum},
    {"checksum report", sizeof(bags_checksum_report), checksummed},
    {"loader", sizeof(bags_loader_options), loader},
    {"field", sizeof(bags_load_field), field},
    {"frames", sizeof(bags_frames_options), frames},
    {"warp", sizeof(bags_warp_options), warp},
    {"jitter", sizeof(bags_jitter_options), jitter},
    {"draw", sizeof(bags_load_draw), draw},
    {"tokens", sizeof(bags_tokens_options), tokens}};

bool take_struct(void *to, size_t size, PyObject *bytes) {
    char *data;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(bytes, &data, &length))
        return false;
    if ((size_t)length != size)
        return PyErr_SetString(PyExc_TypeError, "bytes of another size"), false;
    memcpy(to, data, size);
    return true;
}

/* dtype(name): the number of a dtype; 0 if there is none with this name */
static PyObject *dtype_number(PyObject *module, PyObject *name) {
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(name, &size);
    (void)module;
    return text ? PyLong_FromLong((long)bags_dtype_parse(text, (size_t)size, NULL))
                : NULL;
}

PyMethodDef option_functions[] = {
    {"dtype", dtype_number, METH_O, NULL}, {NULL, NULL, 0, NULL}};

/* {member: (kind, offset)} */
static PyObject *members_dict(const Member *at) {
    PyObject *out = PyDict_New();
    for (; out && at->name; at++) {
        OWNED PyObject *how = Py_BuildValue("sn", at->kind, at->offset);
        if (!how || PyDict_SetItemString(out, at->name, how))
            Py_CLEAR(out);
    }
    return out;
}

PyObject *option_structs(void) {
    PyObject *all = PyDict_New();
    for (size_t i = 0; all && i < sizeof structs / sizeof *structs; i++) {
        OWNED PyObject *made =
            Py_BuildValue("nN", structs[i].size, members_dict(structs[i].members));
        if (!made || PyDict_SetItemString(all, structs[i].name, made))
            Py_CLEAR(all);
    }
    return all;
}
