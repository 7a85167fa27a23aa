/*
 * hdf5.c - writes HDF5 files, on libhdf5 1.10 or later (Debian: libhdf5-dev).
 *
 *     rows      a dataset per field, with a row per datapoint: N x the shape of a value
 *     episodes  a group per datapoint, data/demo_0 and so on, as robomimic's, with a dataset
 *               per field: of a sequence, its items are the rows. A dot in a name begins a
 *               group. data has the attribute total, each group num_samples: the most rows
 *               of a dataset
 *
 *     int(1) to int(7), i64   64 bits
 *     int, int(8), u64        64 bits, unsigned
 *     utf8                    strings of variable length
 *     array(DTYPE,SHAPE)      DTYPE; bool and complex numbers as h5py writes them
 *     blobs                   uint8 of variable length
 *     rows: array(DTYPE,-1), sequences of numbers: DTYPE of variable length
 *
 * The metadata of the dataset are the attribute "info.json" of the file, a string.
 *
 * If libhdf5 is not in use yet, it no longer closes files when the program exits.
 *
 * Rejected: arrays that state no dtype; with rows arrays of other variable shapes and
 * sequences of other values; text with NUL.
 */
#include "export.h"

#include "try.h"

#include <hdf5.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HX_ROWS 1024                 /* that are written at once, */
#define HX_BYTES ((size_t)8 << 20)   /* or their bytes */
#define HX_CHUNK ((size_t)256 << 10) /* bytes of a chunk */

enum { HX_FIXED, HX_TEXT, HX_VLEN };

typedef struct hx_set {
    hid_t base, type; /* of an element of a value; of an element of the dataset */
    hid_t set;        /* rows only; 0: not open */
    size_t row;       /* HX_FIXED: bytes of an item */
    size_t unit;      /* of the bytes of an element that change with the byte order */
    bags_export_bytes data;    /* of the items that are not written yet, */
    bags_export_bytes offsets; /* and where each ends, in elements or bytes */
    bags_export_bytes pointers;
    hsize_t count;    /* of these items */
    const char *path; /* in a group of an episode */
} hx_set;

typedef struct hx_state {
    hid_t file, data;
    hx_set *sets; /* one for each field */
    hsize_t written;
    size_t bytes;
} hx_state;

static bags_code hx_fail(bags_target *t, const char *doing) {
    return bags_target_fail(t, BAGS_ERROR_IO, "libhdf5 cannot %s", doing);
}

/* ---- types ---- */

static hid_t hx_half(void) {
    hid_t half = H5Tcopy(H5T_IEEE_F32LE);
    H5Tset_fields(half, 15, 10, 5, 0, 10);
    H5Tset_size(half, 2);
    H5Tset_ebias(half, 15);
    return half;
}

static hid_t hx_bool(void) {
    signed char no = 0, yes = 1;
    hid_t type = H5Tenum_create(H5T_STD_I8LE);
    H5Tenum_insert(type, "FALSE", &no);
    H5Tenum_insert(type, "TRUE", &yes);
    return type;
}

static hid_t hx_complex(hid_t part, size_t size) {
    hid_t type = H5Tcreate(H5T_COMPOUND, 2 * size);
    H5Tinsert(type, "r", 0, part);
    H5Tinsert(type, "i", size, part);
    return type;
}

static hid_t hx_type(bags_dtype dtype) {
    switch (dtype) {
    case BAGS_DTYPE_BOOL:
        return hx_bool();
    case BAGS_DTYPE_UINT8:
        return H5Tcopy(H5T_STD_U8LE);
    case BAGS_DTYPE_UINT16:
        return H5Tcopy(H5T_STD_U16LE);
    case BAGS_DTYPE_UINT32:
        return H5Tcopy(H5T_STD_U32LE);
    case BAGS_DTYPE_UINT64:
        return H5Tcopy(H5T_STD_U64LE);
    case BAGS_DTYPE_INT8:
        return H5Tcopy(H5T_STD_I8LE);
    case BAGS_DTYPE_INT16:
        return H5Tcopy(H5T_STD_I16LE);
    case BAGS_DTYPE_INT32:
        return H5Tcopy(H5T_STD_I32LE);
    case BAGS_DTYPE_INT64:
        return H5Tcopy(H5T_STD_I64LE);
    case BAGS_DTYPE_FLOAT16:
        return hx_half();
    case BAGS_DTYPE_FLOAT32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case BAGS_DTYPE_FLOAT64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case BAGS_DTYPE_COMPLEX64:
        return hx_complex(H5T_IEEE_F32LE, 4);
    case BAGS_DTYPE_COMPLEX128:
        return hx_complex(H5T_IEEE_F64LE, 8);
    case BAGS_DTYPE_NONE:
    default:
        return -1;
    }
}

static bool hx_has_episodes(const bags_target *t) {
    return t->options.layout == BAGS_EXPORT_EPISODES;
}

static bags_code hx_refuse(bags_target *t, const bags_target_field *field) {
    return bags_target_fail_field(t, field, BAGS_ERROR_TYPE,
        "HDF5 with %s has no type for %s%s", hx_has_episodes(t) ? "episodes" : "rows",
        field->type, field->sequence ? "[]" : "");
}

/* Set the kind of a field, and the dtype of its elements. */
static bags_code hx_prepare_field(bags_target *t, bags_target_field *field) {
    bool rows = !hx_has_episodes(t), fixed = true;
    for (size_t i = 0; i < field->dims; i++)
        fixed = fixed && field->shape[i] != UINT64_MAX && field->shape[i] > 0;
    if (field->form == BAGS_FORM_INTEGER) {
        field->dtype = field->may_exceed_int64 ? BAGS_DTYPE_UINT64 : BAGS_DTYPE_INT64;
        field->kind = field->sequence && rows ? HX_VLEN : HX_FIXED;
        return BAGS_OK;
    }
    if (field->form == BAGS_FORM_ARRAY) {
        bool flat = field->dims == 0, line = field->dims == 1 && !field->sequence;
        field->kind = rows && (field->sequence || !fixed) ? HX_VLEN : HX_FIXED;
        bool bad = !field->dtype || field->dims + 1 >= H5S_MAX_RANK ||
                   (field->kind == HX_VLEN && !flat && !line) ||
                   (!rows && field->sequence && !fixed);
        return bad ? hx_refuse(t, field) : BAGS_OK;
    }
    if (field->sequence && rows)
        return hx_refuse(t, field);
    field->dtype = BAGS_DTYPE_UINT8;
    field->kind = field->form == BAGS_FORM_TEXT ? HX_TEXT : HX_VLEN;
    return BAGS_OK;
}

static bags_code hx_open_set(
    bags_target *t, const bags_target_field *field, hx_set *set) {
    size_t size = bags_dtype_size(field->dtype);
    set->unit = bags_dtype_swap(field->dtype);
    set->row = size;
    for (size_t i = 0; i < field->dims; i++)
        set->row *= field->shape[i] == UINT64_MAX ? 1 : (size_t)field->shape[i];
    set->base = hx_type(field->dtype);
    if (field->kind == HX_TEXT) {
        set->type = H5Tcopy(H5T_C_S1);
        H5Tset_size(set->type, H5T_VARIABLE);
        H5Tset_cset(set->type, H5T_CSET_UTF8);
    } else {
        set->type =
            field->kind == HX_VLEN ? H5Tvlen_create(set->base) : H5Tcopy(set->base);
    }
    char *path = bags_target_format(t, "%s", field->name);
    set->path = path;
    for (char *c = path; path && *c && hx_has_episodes(t); c++)
        *c = (char)(*c == '.' ? '/' : *c);
    return !path            ? BAGS_ERROR_MEMORY
           : set->type <= 0 ? hx_fail(t, "make a type")
                            : BAGS_OK;
}

/* Check that libhdf5 can create the dataset of field `i` next to those before it. */
static bags_code hx_check_name(bags_target *t, size_t i) {
    const hx_set *sets = ((const hx_state *)t->state)->sets;
    const bags_target_field *field = &t->fields[i];
    const char *path = sets[i].path, *last = strrchr(path, '/');
    bool bad = !hx_has_episodes(t) && last;
    if (bad || !strcmp(path, ".") || *path == '/' || (last && !last[1]) ||
        strstr(path, "//"))
        return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
            "\"%.100s\" is not the name of a dataset of HDF5%s: rename it with "
            "--fields",
            field->name, hx_has_episodes(t) ? " (a dot begins a group)" : "");
    for (size_t k = 0; k < i; k++) {
        const char *other = sets[k].path;
        size_t size = strlen(other), most = strlen(path);
        const char *rest = size < most ? path + size : other + most;
        size = size < most ? size : most;
        if (memcmp(path, other, size) == 0 && (*rest == 0 || *rest == '/'))
            return bags_target_fail_field(t, field, BAGS_ERROR_FIELD,
                "\"%.100s\" and \"%.100s\" would be a group and a dataset of one name: "
                "rename one with --fields",
                t->fields[k].name, field->name);
    }
    return BAGS_OK;
}

static bags_code hx_open(bags_target *t) {
    hx_state *h = (hx_state *)t->state;
    /* After a failed write, libhdf5 would crash when the program exits. */
    H5dont_atexit();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    h->sets = (hx_set *)bags_target_alloc(t, t->count, sizeof *h->sets);
    if (!h->sets)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < t->count; i++) {
        FORMAT_TRY(hx_prepare_field(t, &t->fields[i]));
        FORMAT_TRY(hx_open_set(t, &t->fields[i], &h->sets[i]));
        FORMAT_TRY(hx_check_name(t, i));
    }
    return BAGS_OK;
}

/* ---- items ---- */

/* Append the elements of a value. */
static bags_code hx_put_value(bags_target *t, const bags_target_field *field,
    hx_set *set, const bags_value *value) {
    unsigned char bytes[8];
    if (field->form == BAGS_FORM_INTEGER) {
        bags_store_bytes(bytes, 8, false, bags_target_bits(value, 0));
        return bags_target_put(t, &set->data, bytes, 8);
    }
    if (field->kind == HX_TEXT &&
        memchr(value->size ? value->data : "", 0, value->size))
        return bags_target_fail_value(t, field, "strings of HDF5 have no NUL");
    if (field->kind == HX_TEXT && !bags_utf8_valid(value->data, value->size, NULL))
        return bags_target_fail_value(t, field, "text that is not UTF-8");
    size_t start = set->data.size;
    FORMAT_TRY(bags_target_put(t, &set->data, value->data, value->size));
    unsigned char *at = set->data.buffer.data + start;
    for (size_t i = 0; i < value->size && field->dtype == BAGS_DTYPE_BOOL; i++)
        at[i] = at[i] != 0;
    if (!bags_little_endian() && field->form == BAGS_FORM_ARRAY && value->size)
        bags_swap_bytes(at, at, value->size, set->unit);
    return field->kind == HX_TEXT ? bags_target_put(t, &set->data, "", 1) : BAGS_OK;
}

/* End an item: an element of the dataset. */
static bags_code hx_end_item(bags_target *t, hx_set *set) {
    uint64_t stop = set->data.size;
    set->count++;
    return bags_target_put(t, &set->offsets, &stop, sizeof stop);
}

/* Append the items of a field: with rows, a sequence is one. */
static bags_code hx_put_field(
    bags_target *t, const bags_target_field *field, hx_set *set) {
    bool one = field->sequence && !hx_has_episodes(t);
    for (size_t i = 0; i < field->length; i++) {
        FORMAT_TRY(hx_put_value(t, field, set, &field->values[i]));
        if (!one)
            FORMAT_TRY(hx_end_item(t, set));
    }
    return one ? hx_end_item(t, set) : BAGS_OK;
}

/* Make the items as libhdf5 reads them: pointers to text, or lengths and pointers. */
static bags_code hx_memory(
    bags_target *t, const bags_target_field *field, hx_set *set, const void **out) {
    size_t size = bags_dtype_size(field->dtype);
    uint64_t start = 0, stop = 0;
    *out = set->data.size ? (const void *)set->data.buffer.data : (const void *)"";
    set->pointers.size = 0;
    for (hsize_t i = 0; i < set->count && field->kind != HX_FIXED; i++, start = stop) {
        memcpy(&stop, set->offsets.buffer.data + i * sizeof stop, sizeof stop);
        char *at = (char *)set->data.buffer.data + start;
        hvl_t list;
        list.len = (size_t)(stop - start) / size;
        list.p = list.len ? at : NULL;
        FORMAT_TRY(field->kind == HX_TEXT
                       ? bags_target_put(t, &set->pointers, &at, sizeof at)
                       : bags_target_put(t, &set->pointers, &list, sizeof list));
    }
    if (field->kind != HX_FIXED)
        *out = set->pointers.buffer.data;
    return BAGS_OK;
}

static void hx_forget(hx_set *set) {
    set->data.size = set->offsets.size = 0;
    set->count = 0;
}

/* ---- rows ---- */

/* The dimensions of a dataset with this number of rows; returns their number. */
static int hx_shape(const bags_target_field *field, hsize_t rows, hsize_t *dims) {
    int rank = 1;
    dims[0] = rows;
    for (size_t i = 0; i < field->dims && field->kind == HX_FIXED; i++)
        dims[rank++] = field->shape[i];
    return rank;
}

static bags_code hx_create(
    bags_target *t, const bags_target_field *field, hx_set *set) {
    const hx_state *h = (const hx_state *)t->state;
    hsize_t dims[H5S_MAX_RANK], most[H5S_MAX_RANK], chunk[H5S_MAX_RANK];
    int rank = hx_shape(field, 0, dims);
    memcpy(most, dims, sizeof most);
    memcpy(chunk, dims, sizeof chunk);
    most[0] = H5S_UNLIMITED;
    size_t rows = field->kind == HX_FIXED && set->row ? HX_CHUNK / set->row : HX_ROWS;
    chunk[0] = rows < 1 ? 1 : rows > HX_ROWS ? HX_ROWS : rows;
    hid_t space = H5Screate_simple(rank, dims, most),
          how = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(how, rank, chunk);
    H5Pset_obj_track_times(how, 0);
    set->set = H5Dcreate2(
        h->file, field->name, set->type, space, H5P_DEFAULT, how, H5P_DEFAULT);
    H5Pclose(how);
    H5Sclose(space);
    if (set->set > 0)
        return BAGS_OK;
    set->set = 0;
    return bags_target_fail_field(
        t, field, BAGS_ERROR_FIELD, "libhdf5 cannot create a dataset of this name");
}

static bags_code hx_write_rows(bags_target *t) {
    hx_state *h = (hx_state *)t->state;
    hsize_t start[H5S_MAX_RANK] = {0}, dims[H5S_MAX_RANK], count = h->sets[0].count;
    for (size_t i = 0; i < t->count && count; i++) {
        hx_set *set = &h->sets[i];
        const void *memory;
        FORMAT_TRY(hx_memory(t, &t->fields[i], set, &memory));
        int rank = hx_shape(&t->fields[i], h->written + count, dims);
        if (H5Dset_extent(set->set, dims) < 0)
            return hx_fail(t, "extend a dataset");
        start[0] = h->written;
        dims[0] = count;
        hid_t file = H5Dget_space(set->set), space = H5Screate_simple(rank, dims, NULL);
        bool bad =
            H5Sselect_hyperslab(file, H5S_SELECT_SET, start, NULL, dims, NULL) < 0 ||
            H5Dwrite(set->set, set->type, space, file, H5P_DEFAULT, memory) < 0;
        H5Sclose(space);
        H5Sclose(file);
        if (bad)
            return hx_fail(t, "write");
        hx_forget(set);
    }
    h->written += count;
    h->bytes = 0;
    return BAGS_OK;
}

static bags_code hx_put_row(bags_target *t) {
    hx_state *h = (hx_state *)t->state;
    size_t bytes = 0;
    for (size_t i = 0; i < t->count; i++) {
        FORMAT_TRY(hx_put_field(t, &t->fields[i], &h->sets[i]));
        bytes += h->sets[i].data.size;
    }
    return h->sets[0].count >= HX_ROWS || bytes >= HX_BYTES ? hx_write_rows(t)
                                                            : BAGS_OK;
}

/* ---- episodes ---- */

static bags_code hx_put_number(
    bags_target *t, hid_t at, const char *name, uint64_t number) {
    unsigned char bytes[8];
    bags_store_bytes(bytes, 8, false, number);
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute =
        H5Acreate2(at, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    bool bad = attribute <= 0 || H5Awrite(attribute, H5T_STD_I64LE, bytes) < 0;
    if (attribute > 0)
        H5Aclose(attribute);
    H5Sclose(space);
    return bad ? hx_fail(t, "write an attribute") : BAGS_OK;
}

static bags_code hx_put_dataset(
    bags_target *t, hid_t group, const bags_target_field *field, hx_set *set) {
    hsize_t dims[H5S_MAX_RANK];
    const void *memory;
    int rank = 0;
    FORMAT_TRY(hx_put_field(t, field, set));
    FORMAT_TRY(hx_memory(t, field, set, &memory));
    if (field->sequence)
        rank = hx_shape(field, set->count, dims);
    else
        for (; field->form == BAGS_FORM_ARRAY && rank < (int)field->dims; rank++)
            dims[rank] = field->values->shape[rank];
    hid_t space = rank ? H5Screate_simple(rank, dims, NULL) : H5Screate(H5S_SCALAR);
    hid_t how = H5Pcreate(H5P_DATASET_CREATE), links = H5Pcreate(H5P_LINK_CREATE);
    H5Pset_obj_track_times(how, 0);
    H5Pset_create_intermediate_group(links, 1);
    hid_t made =
        H5Dcreate2(group, set->path, set->type, space, links, how, H5P_DEFAULT);
    bool empty = set->count == 0 || (field->kind == HX_FIXED && !set->data.size);
    bool bad = made <= 0 || (!empty && H5Dwrite(made, set->type, H5S_ALL, H5S_ALL,
                                           H5P_DEFAULT, memory) < 0);
    if (made > 0)
        H5Dclose(made);
    H5Pclose(links);
    H5Pclose(how);
    H5Sclose(space);
    hx_forget(set);
    if (made <= 0)
        return bags_target_fail_value(
            t, field, "libhdf5 cannot create a dataset of this name and shape");
    return bad ? hx_fail(t, "write") : BAGS_OK;
}

static bags_code hx_put_episode(bags_target *t, uint64_t *rows) {
    hx_state *h = (hx_state *)t->state;
    char name[40];
    *rows = 0;
    (void)snprintf(name, sizeof name, "demo_%" PRIu64, t->index);
    hid_t group = H5Gcreate2(h->data, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (group <= 0)
        return hx_fail(t, "create a group");
    bags_code code = BAGS_OK;
    for (size_t i = 0; i < t->count && !code; i++) {
        const bags_target_field *field = &t->fields[i];
        uint64_t length = field->sequence ? field->length
                          : field->dims   ? field->values->shape[0]
                                          : 0;
        *rows = length > *rows ? length : *rows;
        code = hx_put_dataset(t, group, field, &h->sets[i]);
    }
    if (!code)
        code = hx_put_number(t, group, "num_samples", *rows);
    H5Gclose(group);
    return code;
}

/* ---- files ---- */

/* The metadata of the dataset are an attribute of the file. */
static bags_code hx_put_metadata(bags_target *t) {
    const hx_state *h = (const hx_state *)t->state;
    const bags_view json = t->options.metadata;
    char *text = bags_target_format(t, "%.*s", (int)json.size, (const char *)json.data);
    if (!text)
        return BAGS_ERROR_MEMORY;
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    hid_t made =
        H5Acreate2(h->file, "info.json", type, space, H5P_DEFAULT, H5P_DEFAULT);
    bool bad = made <= 0 || H5Awrite(made, type, &text) < 0;
    if (made > 0)
        H5Aclose(made);
    H5Sclose(space);
    H5Tclose(type);
    return bad ? hx_fail(t, "write an attribute") : BAGS_OK;
}

static bags_code hx_write(bags_target *t) {
    hx_state *h = (hx_state *)t->state;
    uint64_t total = 0, rows = 0;
    bool episodes = hx_has_episodes(t);
    if (t->options.metadata.data)
        FORMAT_TRY(hx_put_metadata(t));
    for (size_t i = 0; i < t->count && !episodes; i++)
        FORMAT_TRY(hx_create(t, &t->fields[i], &h->sets[i]));
    if (episodes) {
        h->data = H5Gcreate2(h->file, "data", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        if (h->data <= 0)
            return hx_fail(t, "create a group");
    }
    for (bool more = true;;) {
        FORMAT_TRY(bags_target_next(t, &more));
        if (!more)
            break;
        FORMAT_TRY(episodes ? hx_put_episode(t, &rows) : hx_put_row(t));
        total += rows;
    }
    return episodes ? hx_put_number(t, h->data, "total", total) : hx_write_rows(t);
}

/* Close the file: libhdf5 writes the rest. */
static bags_code hx_close_file(bags_target *t) {
    hx_state *h = (hx_state *)t->state;
    bool bad = false;
    for (size_t i = 0; i < t->count; i++) {
        if (h->sets[i].set > 0)
            bad = H5Dclose(h->sets[i].set) < 0 || bad;
        h->sets[i].set = 0;
        hx_forget(&h->sets[i]);
    }
    if (h->data > 0)
        bad = H5Gclose(h->data) < 0 || bad;
    if (h->file > 0)
        bad = H5Fclose(h->file) < 0 || bad;
    h->data = h->file = 0;
    h->written = 0;
    return bad ? hx_fail(t, "write") : BAGS_OK;
}

static bags_code hx_shard(bags_target *t) {
    hx_state *h = (hx_state *)t->state;
    char *path = bags_target_shard_path(t);
    const char *partial = NULL;
    FORMAT_TRY(path ? bags_target_made_open(t, path, &partial) : BAGS_ERROR_MEMORY);
    h->file = H5Fcreate(partial, H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT);
    if (h->file <= 0)
        return hx_fail(t, "create the file");
    FORMAT_TRY(hx_write(t));
    FORMAT_TRY(hx_close_file(t));
    return bags_target_made_close(t);
}

static void hx_close(bags_target *t) {
    hx_state *h = (hx_state *)t->state;
    bags_error ignored, *err = t->err;
    if (!h->sets)
        return;
    t->err = &ignored;
    (void)hx_close_file(t);
    t->err = err;
    for (size_t i = 0; i < t->count; i++) {
        if (h->sets[i].type > 0)
            H5Tclose(h->sets[i].type);
        if (h->sets[i].base > 0)
            H5Tclose(h->sets[i].base);
    }
}

const bags_exporter bags_export_hdf5 = {"hdf5", ".h5 .hdf5", false, false, true,
    sizeof(hx_state), hx_open, hx_shard, NULL, hx_close};
