/*
 * hdf5.c - imports HDF5 files, on libhdf5 1.10 or later (Debian: libhdf5-dev).
 *
 * A source is a file, or a group in it: FILE/GROUP. It is one of
 *
 *     rows      datasets of equal length: datapoint i is row i of each. A scalar
 *               is repeated
 *     episodes  a group of groups with the same datasets, such as demo_0, demo_1:
 *               a datapoint per group, in the order of their names, numbers by
 *               value. Datasets become sequences of their rows; the field "group"
 *               has the group's name. Datasets elsewhere are left out
 *
 * A field has the path of its dataset, joined by dots, and of a member of a
 * compound, of which each is a field.
 *
 *     integers   i64, u64; in arrays array(DTYPE,shape of a row)
 *     floats     array(DTYPE,shape of a row); so are Booleans of h5py and compounds
 *                of r and i, which are complex numbers
 *     strings    utf8
 *     sequences  of variable length: array(DTYPE,-1)
 *     opaque     bytes
 *
 * Rejected: references, bit fields, times, floats that are not IEEE's, arrays of
 * strings in a row; links to other names or files, and data in other files.
 * Attributes are left out.
 */
#include "import.h"

#include <hdf5.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define H5_DEPTH 16                   /* of groups, and of compounds */
#define H5_SMALL ((uint64_t)64 << 20) /* bytes that any dataset may have, ... */
#define H5_RATIO 1100                 /* and per stored byte */
#define H5_CACHE ((uint64_t)256 << 20) /* most bytes of chunks per dataset */

typedef enum h5_form {
    H5_NUMBER, /* an array, or an integer */
    H5_TEXT,   /* char * */
    H5_FIXED,  /* characters */
    H5_VLEN,   /* hvl_t */
    H5_BYTES
} h5_form;

/* A dataset, or a member of a compound. */
typedef struct h5_column {
    const char *path;   /* of the dataset, from the group */
    const char *member; /* "" or ".member.member" */
    hid_t type; /* an element in memory; of a compound, with one member */
    hid_t leaf; /* the same without compounds */
    h5_form form;
    bags_dtype dtype;
    H5T_str_t pad;
    bool big, integer, is_signed;
    char shape[256]; /* of array types, as in a type: ",2,3" */
    size_t size;     /* bytes of an element */
    size_t element;  /* bytes of a number */
    bool sequence;
    int rank;
    hsize_t dims[H5S_MAX_RANK];
    size_t cells; /* elements per row */
    hid_t set;    /* open while rows are read */
    bool loaded;  /* data has what H5Dvlen_reclaim must free */
    size_t rows;
    bags_buffer data, values;
} h5_column;

/* Names in a group, or paths of the datasets below it. */
typedef struct h5_list {
    bags_buffer names; /* const char * */
    size_t count;
    size_t groups, others; /* links to groups, and to anything else */
    bool paths;
    bags_code code;
} h5_list;

typedef struct h5_source {
    bags_import_arena arena, scratch;
    const bags_allocator *allocator;
    bags_allocator own;
    const char *path; /* of the file */
    hid_t file, group;
    uint64_t file_size, length;
    bool episodes;
    h5_list names; /* of episodes */
    h5_column *columns;
    size_t count, capacity;
    bags_field *fields;
    bags_entry *entries;
    bags_value name;
    bool no_memory;  /* to decide what the source is */
    bags_error *err; /* of the call in progress */
} h5_source;

/* ---- errors ---- */

static herr_t h5_describe(
    unsigned n, const H5E_error2_t *error, void *description) {
    (void)n;
    *(const char **)description = error->desc ? error->desc : "";
    return 0;
}

static bags_code h5_fail(h5_source *s, const char *where) {
    const char *why = "";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, h5_describe, &why);
    bags_code code = bags_fail(s->err, BAGS_ERROR_CORRUPT,
        "%s: %s: cannot read: %.200s", s->path, where, why);
    H5Eclear2(H5E_DEFAULT);
    return code;
}

static bags_code h5_refuse(
    h5_source *s, const char *path, const char *member, const char *what) {
    return bags_fail(s->err, BAGS_ERROR_TYPE, "%s: dataset %s%s: %s", s->path,
        path, member, what);
}

/* ---- groups ---- */

static const char **h5_names(const h5_list *list) {
    return (const char **)(void *)list->names.data;
}

static bool h5_add(h5_source *s, h5_list *list, const char *name) {
    /* Those of a datapoint are valid until the next one. */
    name = bags_import_text(
        s->entries ? &s->scratch : &s->arena, name, strlen(name), s->err);
    if (!name || bags_buffer_reserve(
                     &list->names, (list->count + 1) * sizeof name, s->err)) {
        list->code = BAGS_ERROR_MEMORY;
        return false;
    }
    h5_names(list)[list->count++] = name;
    return true;
}

typedef struct h5_visit {
    h5_source *s;
    h5_list *list;
    const char *prefix;
    int depth;
} h5_visit;

/* Add what a link names: to a list of paths, datasets here and below; to another,
 * groups, the datasets being counted. */
static herr_t h5_link(
    hid_t group, const char *name, const H5L_info_t *info, void *user) {
    h5_visit *visit = (h5_visit *)user;
    h5_source *s = visit->s;
    h5_list *list = visit->list;
    const char *path =
        bags_import_format(&s->scratch, s->err, "%s%s", visit->prefix, name);
    list->code = BAGS_OK;
    if (!path) {
        list->code = BAGS_ERROR_MEMORY;
        return -1;
    }
    if (info->type != H5L_TYPE_HARD) {
        list->code = bags_fail(s->err, BAGS_ERROR_TYPE,
            "%s: %s: links to other names or files are not followed", s->path,
            path);
        return -1;
    }
    hid_t object = H5Oopen(group, name, H5P_DEFAULT);
    H5I_type_t kind = object < 0 ? H5I_BADID : H5Iget_type(object);
    herr_t result = 0;
    if (kind == H5I_BADID) {
        list->code = h5_fail(s, path);
    } else if (list->paths && kind == H5I_GROUP && visit->depth < H5_DEPTH) {
        h5_visit inner = *visit;
        inner.depth++;
        inner.prefix = bags_import_format(&s->scratch, s->err, "%s/", path);
        if (!inner.prefix)
            list->code = BAGS_ERROR_MEMORY;
        else
            result = H5Literate(
                object, H5_INDEX_NAME, H5_ITER_INC, NULL, h5_link, &inner);
    } else if (list->paths && kind == H5I_GROUP) {
        list->code = bags_fail(s->err, BAGS_ERROR_LIMIT,
            "%s: %s: groups are nested too deeply (maximum %d)", s->path, path,
            H5_DEPTH);
    } else if (kind == (list->paths ? H5I_DATASET : H5I_GROUP)) {
        list->groups++;
        h5_add(s, list, path);
    } else {
        list->others++;
    }
    if (object >= 0)
        H5Oclose(object);
    return list->code || result < 0 ? -1 : 0;
}

/* List a group's groups, or the paths of its datasets. Free the names. */
static bags_code h5_list_group(
    h5_source *s, hid_t group, bool paths, h5_list *list) {
    h5_visit visit = {s, list, "", 0};
    memset(list, 0, sizeof *list);
    list->names = bags_import_buffer_start(s->allocator);
    list->paths = paths;
    if (H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, NULL, h5_link, &visit) <
            0 &&
        !list->code)
        list->code = h5_fail(s, "a group");
    if (!list->code && list->count > 0)
        qsort(
            list->names.data, list->count, sizeof(char *), bags_import_compare);
    s->no_memory = s->no_memory || list->code == BAGS_ERROR_MEMORY;
    return list->code;
}

static bool h5_ends_in_digit(const char *name) {
    size_t size = strlen(name);
    return size > 0 && name[size - 1] >= '0' && name[size - 1] <= '9';
}

/* True if two groups have datasets of the same paths. */
static bool h5_alike(h5_source *s, hid_t group, const char *a, const char *b) {
    h5_list lists[2];
    const char *names[2];
    bool alike = true;
    names[0] = a;
    names[1] = b;
    memset(lists, 0, sizeof lists);
    for (size_t i = 0; i < 2; i++) {
        hid_t child = H5Gopen2(group, names[i], H5P_DEFAULT);
        alike =
            child >= 0 && !h5_list_group(s, child, true, &lists[i]) && alike;
        if (child >= 0)
            H5Gclose(child);
    }
    alike = alike && lists[0].count > 0 && lists[0].count == lists[1].count;
    for (size_t i = 0; alike && i < lists[0].count; i++)
        alike = strcmp(h5_names(&lists[0])[i], h5_names(&lists[1])[i]) == 0;
    bags_buffer_free(&lists[0].names);
    bags_buffer_free(&lists[1].names);
    return alike;
}

/* True if the groups in a list are episodes: their names end in digits, or
 * `any` name but that of a split. */
static bool h5_is_episodes(
    h5_source *s, hid_t group, const h5_list *list, bool any) {
    static const char *const splits[] = {
        "train", "training", "val", "valid", "validation", "test", "eval"};
    if (list->count == 0 || list->others > 0 || (any && list->count < 2))
        return false;
    for (size_t i = 0; i < list->count; i++) {
        const char *name = h5_names(list)[i];
        if (!any && !h5_ends_in_digit(name))
            return false;
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++)
            if (strcmp(name, splits[k]) == 0)
                return false;
    }
    const char *first = h5_names(list)[0];
    bool sets = false; /* a difference is then an error, which read returns */
    hid_t child = any ? -1 : H5Gopen2(group, first, H5P_DEFAULT);
    if (child >= 0) {
        h5_list inner;
        sets = !h5_list_group(s, child, false, &inner) && inner.others > 0;
        bags_buffer_free(&inner.names);
        H5Gclose(child);
    }
    return sets || h5_alike(s, group, first, h5_names(list)[list->count - 1]);
}

/* Find the only group of episodes in a group: its path, or NULL. */
static bags_code h5_find(h5_source *s, hid_t group, const char *path, int depth,
    bool any, const char **found) {
    h5_list list;
    bags_code code = h5_list_group(s, group, false, &list);
    if (!code && h5_is_episodes(s, group, &list, any)) {
        if (*found)
            code = bags_fail(s->err, BAGS_ERROR_TYPE,
                "%s: several groups of episodes (%.200s and %.200s); import "
                "one of them, as FILE/GROUP",
                s->path, *found, path);
        *found = path;
    } else {
        for (size_t i = 0; !code && i < list.count && depth < H5_DEPTH; i++) {
            const char *name = h5_names(&list)[i];
            const char *inner = bags_import_format(
                &s->arena, s->err, "%s%s%s", path, *path ? "/" : "", name);
            hid_t child = H5Gopen2(group, name, H5P_DEFAULT);
            if (!inner)
                code = BAGS_ERROR_MEMORY;
            else if (child < 0)
                code = h5_fail(s, inner);
            else
                code = h5_find(s, child, inner, depth + 1, any, found);
            if (child >= 0)
                H5Gclose(child);
        }
    }
    bags_buffer_free(&list.names);
    return code;
}

/* ---- types ---- */

/* The dtype of integers and floats that are stored in all their bits. */
static bags_dtype h5_dtype(hid_t type, H5T_class_t kind) {
    static const bags_dtype integers[2][4] = {
        {BAGS_DTYPE_UINT8, BAGS_DTYPE_UINT16, BAGS_DTYPE_UINT32,
            BAGS_DTYPE_UINT64},
        {BAGS_DTYPE_INT8, BAGS_DTYPE_INT16, BAGS_DTYPE_INT32,
            BAGS_DTYPE_INT64}};
    size_t size = H5Tget_size(type), log = 0;
    H5T_order_t order = H5Tget_order(type);
    while (log < 4 && (size_t)1 << log != size)
        log++;
    if (log == 4 || H5Tget_precision(type) != 8 * size ||
        (size > 1 && order != H5T_ORDER_LE && order != H5T_ORDER_BE))
        return BAGS_DTYPE_NONE;
    if (kind == H5T_INTEGER)
        return integers[H5Tget_sign(type) == H5T_SGN_2][log];
    size_t sign, exponent, bits, mantissa, rest;
    if (H5Tget_fields(type, &sign, &exponent, &bits, &mantissa, &rest) < 0)
        return BAGS_DTYPE_NONE;
    return size == 2 && bits == 5    ? BAGS_DTYPE_FLOAT16
           : size == 4 && bits == 8  ? BAGS_DTYPE_FLOAT32
           : size == 8 && bits == 11 ? BAGS_DTYPE_FLOAT64
                                     : BAGS_DTYPE_NONE;
}

/* The members of a compound of numbers r and i, as h5py writes complex ones. */
static bags_dtype h5_complex(hid_t type) {
    bags_dtype dtype = BAGS_DTYPE_NONE;
    if (H5Tget_nmembers(type) != 2)
        return dtype;
    char *r = H5Tget_member_name(type, 0), *i = H5Tget_member_name(type, 1);
    hid_t real = H5Tget_member_type(type, 0);
    hid_t imaginary = H5Tget_member_type(type, 1);
    if (r && i && !strcmp(r, "r") && !strcmp(i, "i") &&
        H5Tget_class(real) == H5T_FLOAT && H5Tequal(real, imaginary) > 0 &&
        H5Tget_size(type) == 2 * H5Tget_size(real) &&
        H5Tget_member_offset(type, 0) == 0)
        dtype = h5_dtype(real, H5T_FLOAT);
    H5free_memory(r);
    H5free_memory(i);
    H5Tclose(real);
    H5Tclose(imaginary);
    return dtype == BAGS_DTYPE_FLOAT32   ? BAGS_DTYPE_COMPLEX64
           : dtype == BAGS_DTYPE_FLOAT64 ? BAGS_DTYPE_COMPLEX128
                                         : BAGS_DTYPE_NONE;
}

/* Set what is needed to read numbers of this type. False if they are none. */
static bool h5_number(h5_column *c, hid_t type) {
    H5T_class_t kind = H5Tget_class(type);
    hid_t base = -1;
    c->dtype = BAGS_DTYPE_NONE;
    if (kind == H5T_COMPOUND) {
        c->dtype = h5_complex(type);
        base = H5Tget_member_type(type, 0);
    } else if (kind == H5T_ENUM) {
        base = H5Tget_super(type);
        char *name = H5Tget_member_name(type, 0);
        bool boolean = H5Tget_nmembers(type) == 2 && name &&
                       !strcmp(name, "FALSE") && H5Tget_size(type) == 1;
        c->dtype = boolean ? BAGS_DTYPE_BOOL : h5_dtype(base, H5T_INTEGER);
        H5free_memory(name);
    } else if (kind == H5T_INTEGER || kind == H5T_FLOAT) {
        c->dtype = h5_dtype(type, kind);
    }
    c->big = H5Tget_order(base < 0 ? type : base) == H5T_ORDER_BE;
    c->element = bags_dtype_size(c->dtype);
    c->integer = c->dtype >= BAGS_DTYPE_UINT8 && c->dtype <= BAGS_DTYPE_INT64;
    c->is_signed = c->dtype >= BAGS_DTYPE_INT8;
    if (base >= 0)
        H5Tclose(base);
    return c->dtype != BAGS_DTYPE_NONE;
}

/* Set what is needed to read elements of this type, which is no other compound. */
static bags_code h5_leaf(h5_source *s, h5_column *c, hid_t type) {
    H5T_class_t kind = H5Tget_class(type);
    hsize_t dims[H5S_MAX_RANK];
    hid_t base = -1;
    bool good = true;
    if (kind == H5T_STRING) {
        c->form = H5Tis_variable_str(type) > 0 ? H5_TEXT : H5_FIXED;
        c->pad = H5Tget_strpad(type);
    } else if (kind == H5T_OPAQUE) {
        c->form = H5_BYTES;
    } else if (kind == H5T_VLEN) {
        c->form = H5_VLEN;
        base = H5Tget_super(type);
        good = h5_number(c, base);
    } else if (kind == H5T_ARRAY) {
        int rank = H5Tget_array_dims2(type, dims);
        size_t used = 0;
        for (int i = 0; i < rank && used < sizeof c->shape - 24; i++)
            used += (size_t)snprintf(
                c->shape + used, 24, ",%" PRIu64, (uint64_t)dims[i]);
        base = H5Tget_super(type);
        good = rank > 0 && used < sizeof c->shape - 24 && h5_number(c, base);
    } else {
        good = h5_number(c, type);
    }
    if (base >= 0)
        H5Tclose(base);
    return good ? BAGS_OK
                : h5_refuse(s, c->path, c->member,
                      kind == H5T_REFERENCE  ? "references are not supported"
                      : kind == H5T_BITFIELD ? "bit fields are not supported"
                                             : "its type is not supported");
}

/* Add a column of elements of `type`, within the compounds of `outer`: for a
 * compound, one per member. */
static bags_code h5_columns(h5_source *s, const h5_column *about, hid_t type,
    const char *const *outer, int depth) {
    bags_code code = BAGS_OK;
    if (H5Tget_class(type) == H5T_COMPOUND && !h5_complex(type)) {
        int members = H5Tget_nmembers(type);
        const char *names[H5_DEPTH + 1];
        if (depth == H5_DEPTH)
            return h5_refuse(
                s, about->path, about->member, "nested too deeply");
        for (int i = 0; i < depth; i++)
            names[i] = outer[i];
        for (int i = 0; !code && i < members; i++) {
            h5_column inner = *about;
            char *name = H5Tget_member_name(type, (unsigned)i);
            hid_t member = H5Tget_member_type(type, (unsigned)i);
            if (!name || member < 0)
                code = h5_fail(s, about->path);
            names[depth] = name;
            inner.member = code ? NULL
                                : bags_import_format(&s->arena, s->err, "%s.%s",
                                      about->member, name);
            if (!code)
                code = inner.member
                           ? h5_columns(s, &inner, member, names, depth + 1)
                           : BAGS_ERROR_MEMORY;
            if (member >= 0)
                H5Tclose(member);
            H5free_memory(name);
        }
        return code;
    }
    if (s->count == s->capacity) {
        size_t capacity = 2 * s->capacity + 8;
        h5_column *grown = (h5_column *)bags_import_alloc(
            &s->arena, capacity, sizeof *grown, s->err);
        if (!grown)
            return BAGS_ERROR_MEMORY;
        if (s->count)
            memcpy(grown, s->columns, s->count * sizeof *grown);
        s->columns = grown;
        s->capacity = capacity;
    }
    h5_column *c = &s->columns[s->count];
    *c = *about;
    c->set = -1;
    c->data = c->values = bags_import_buffer_start(s->allocator);
    code = h5_leaf(s, c, type);
    if (code)
        return code;
    c->size = H5Tget_size(type);
    c->leaf = H5Tcopy(type);
    c->type = H5Tcopy(type);
    s->count++;
    for (int i = depth; i-- > 0;) {
        hid_t wrapped = H5Tcreate(H5T_COMPOUND, c->size);
        H5Tinsert(wrapped, outer[i], 0, c->type);
        H5Tclose(c->type);
        c->type = wrapped;
    }
    return c->type < 0 ? h5_fail(s, c->path) : BAGS_OK;
}

/* ---- datasets ---- */

/* Open a dataset and get its shape. */
static bags_code h5_open_set(h5_source *s, hid_t group, const char *path,
    hid_t *set, int *rank, hsize_t *dims) {
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    *set = H5Dopen2(group, path, access);
    hid_t space = H5Dget_space(*set), how = H5Dget_create_plist(*set);
    H5S_class_t kind = H5Sget_simple_extent_type(space);
    *rank =
        kind == H5S_SCALAR ? 0 : H5Sget_simple_extent_dims(space, dims, NULL);
    bags_code code = BAGS_OK;
    if (*set < 0 || space < 0 || how < 0 || *rank < 0)
        code = h5_fail(s, path);
    else if (kind != H5S_SCALAR && kind != H5S_SIMPLE)
        code = h5_refuse(s, path, "", "it has no shape (an empty dataset)");
    else if (H5Pget_layout(how) == H5D_VIRTUAL ||
             H5Pget_external_count(how) > 0)
        code = h5_refuse(s, path, "", "its data are in other files");
    hsize_t chunk[H5S_MAX_RANK];
    if (!code && *rank > 0 && H5Pget_layout(how) == H5D_CHUNKED &&
        H5Pget_chunk(how, *rank, chunk) == *rank) {
        /* A row is in as many chunks: keep them, or each is read again. */
        hid_t type = H5Dget_type(*set);
        size_t item = H5Tget_size(type);
        double bytes = (double)item * (double)chunk[0];
        double chunks = 1;
        for (int d = 1; d < *rank; d++) {
            chunks *= (double)((dims[d] + chunk[d] - 1) / chunk[d]);
            bytes *= (double)chunk[d];
        }
        bytes *= chunks;
        if (bytes > (double)H5_CACHE)
            bytes = (double)H5_CACHE;
        H5Pset_chunk_cache(access, chunks < 5000 ? 10007 : 100003,
            bytes < 1 << 20 ? 1 << 20 : (size_t)bytes, 1.0);
        H5Tclose(type);
        H5Dclose(*set);
        *set = H5Dopen2(group, path, access);
    }
    if (space >= 0)
        H5Sclose(space);
    if (how >= 0)
        H5Pclose(how);
    H5Pclose(access);
    if (code && *set >= 0) {
        H5Dclose(*set);
        *set = -1;
    }
    return code;
}

/* The elements of a row. The bytes of one are bounded by those that are stored. */
static bags_code h5_cells(h5_source *s, h5_column *c, uint64_t rows) {
    uint64_t stored = H5Dget_storage_size(c->set);
    if (stored > s->file_size)
        stored = s->file_size;
    uint64_t most = H5_SMALL + stored * H5_RATIO, bytes = rows * c->size;
    c->cells = 1;
    if (c->size && rows > most / c->size)
        bytes = most + 1;
    for (int d = 1; d < c->rank && bytes <= most; d++) {
        if (c->dims[d] > 0 && bytes > most / c->dims[d])
            bytes = most + 1;
        else
            bytes *= c->dims[d];
        c->cells *= (size_t)c->dims[d];
    }
    if (bytes > most || bytes > SIZE_MAX / 2)
        return bags_fail(s->err, BAGS_ERROR_LIMIT,
            "%s: dataset %s: too large (more than %" PRIu64
            " bytes from %" PRIu64 " stored)",
            s->path, c->path, most, stored);
    if (c->cells != 1 && c->form != H5_NUMBER)
        return h5_refuse(s, c->path, c->member, "rows of several strings");
    return BAGS_OK;
}

static void h5_release(h5_column *c) {
    hsize_t count = c->rows * c->cells;
    if (c->loaded && count > 0) {
        hid_t space = H5Screate_simple(1, &count, NULL);
        H5Dvlen_reclaim(c->leaf, space, H5P_DEFAULT, c->data.data);
        H5Sclose(space);
    }
    c->loaded = false;
}

/* Read rows of a column: all elements of a scalar. */
static bags_code h5_read_rows(
    h5_source *s, h5_column *c, uint64_t start, uint64_t rows) {
    h5_release(c);
    bags_code code = h5_cells(s, c, rows);
    size_t size = (size_t)rows * c->cells * c->size;
    c->rows = (size_t)rows;
    if (!code)
        code = bags_buffer_reserve(&c->data, size, s->err);
    if (!code)
        code = bags_buffer_reserve(
            &c->values, c->rows * sizeof(bags_value), s->err);
    if (code || size == 0)
        return code;
    memset(c->data.data, 0, size);
    hid_t from = H5Dget_space(c->set);
    hsize_t part[H5S_MAX_RANK], first[H5S_MAX_RANK] = {0};
    memcpy(part, c->dims, sizeof part);
    first[0] = start;
    part[0] = rows;
    /* Of the same rank: libhdf5 would otherwise select every element. */
    hid_t to = c->rank > 0 ? H5Screate_simple(c->rank, part, NULL)
                           : H5Screate(H5S_SCALAR);
    if (c->rank > 0)
        H5Sselect_hyperslab(from, H5S_SELECT_SET, first, NULL, part, NULL);
    c->loaded = c->form == H5_TEXT || c->form == H5_VLEN;
    if (H5Dread(c->set, c->type, to, from, H5P_DEFAULT, c->data.data) < 0) {
        code = h5_fail(s, c->path);
        c->loaded = false; /* what it holds is unknown */
    }
    H5Sclose(from);
    H5Sclose(to);
    return code;
}

/* The value of a row that was read. */
static bags_value h5_value(const h5_column *c, size_t row) {
    unsigned char *data = c->data.data + row * c->cells * c->size;
    size_t size = c->cells * c->size;
    size_t swap = c->big && c->dtype ? bags_dtype_swap(c->dtype) : 1;
    if (c->form == H5_TEXT) {
        char *text;
        memcpy(&text, data, sizeof text);
        return bags_utf8(text ? text : "");
    }
    if (c->form == H5_FIXED) {
        const void *end =
            c->pad == H5T_STR_NULLTERM ? memchr(data, 0, size) : NULL;
        char pad = c->pad == H5T_STR_SPACEPAD ? ' ' : 0;
        if (end)
            size = (size_t)((const unsigned char *)end - data);
        while (size > 0 && data[size - 1] == pad)
            size--;
        return bags_utf8_sized((const char *)data, size);
    }
    if (c->form == H5_VLEN) {
        hvl_t list;
        memcpy(&list, data, sizeof list);
        size = list.len * c->element;
        bags_swap_bytes(list.p, list.p, size, swap);
        return bags_blob(list.p, size);
    }
    bags_swap_bytes(data, data, size, swap);
    if (!c->integer || c->rank > 1 || *c->shape)
        return bags_blob(data, size);
    uint64_t number = 0;
    for (size_t i = size; i-- > 0;)
        number = number << 8 | data[i];
    if (c->is_signed && size < 8 && data[size - 1] & 0x80)
        number |= UINT64_MAX << 8 * size;
    return c->is_signed ? bags_int((int64_t)number) : bags_uint(number);
}

static const char *h5_type(h5_source *s, const h5_column *c) {
    const char *type = c->form == H5_BYTES ? "bytes" : "utf8", *shape = "";
    for (int d = 1; shape && d < c->rank; d++)
        shape = bags_import_format(
            &s->arena, s->err, "%s,%" PRIu64, shape, (uint64_t)c->dims[d]);
    if (!shape)
        return NULL;
    if (c->form == H5_VLEN)
        type = bags_import_format(
            &s->arena, s->err, "array(%s,-1)", bags_dtype_name(c->dtype));
    else if (c->form == H5_NUMBER && c->integer && !*shape && !*c->shape)
        type = c->is_signed ? "i64" : "u64";
    else if (c->form == H5_NUMBER)
        type = bags_import_format(&s->arena, s->err, "array(%s%s%s)",
            bags_dtype_name(c->dtype), shape, c->shape);
    if (type && c->sequence)
        type = bags_import_format(&s->arena, s->err, "%s[]", type);
    return type;
}

/* ---- open ---- */

/* Add the columns of all datasets in a group. */
static bags_code h5_open_columns(h5_source *s, hid_t group) {
    h5_list list;
    bags_code code = h5_list_group(s, group, true, &list);
    for (size_t i = 0; !code && i < list.count; i++) {
        h5_column about;
        memset(&about, 0, sizeof about);
        about.path = h5_names(&list)[i];
        about.member = "";
        size_t first = s->count;
        hid_t set;
        code = h5_open_set(s, group, about.path, &set, &about.rank, about.dims);
        if (code)
            break;
        hid_t type = H5Dget_type(set);
        about.sequence = s->episodes && about.rank > 0;
        code = type < 0 ? h5_fail(s, about.path)
                        : h5_columns(s, &about, type, NULL, 0);
        if (type >= 0)
            H5Tclose(type);
        for (size_t k = first; !code && k < s->count; k++) {
            s->columns[k].set = set;
            code = h5_cells(s, &s->columns[k], 1);
            if (k > first)
                H5Iinc_ref(set);
        }
        if (s->count == first)
            H5Dclose(set);
    }
    bags_buffer_free(&list.names);
    if (!code && s->count == 0)
        code = bags_fail(
            s->err, BAGS_ERROR_MISSING, "%s: no dataset in it", s->path);
    return code;
}

/* The length of rows: that of all datasets which are not scalars. *other becomes
 * one that differs. */
static bags_code h5_rows_length(h5_source *s, const h5_column **other) {
    const h5_column *first = NULL;
    *other = NULL;
    s->length = 1;
    for (size_t i = 0; i < s->count; i++) {
        const h5_column *c = &s->columns[i];
        if (c->rank == 0)
            continue;
        if (!first)
            s->length = (first = c)->dims[0];
        if (c->dims[0] == s->length)
            continue;
        *other = c;
        return bags_fail(s->err, BAGS_ERROR_TYPE,
            "%s: the datasets differ in length (%s %" PRIu64 ", %s %" PRIu64
            "); import a group of it, as FILE/GROUP",
            s->path, first->path, s->length, c->path, (uint64_t)c->dims[0]);
    }
    return BAGS_OK;
}

static void h5_drop_columns(h5_source *s) {
    for (size_t i = 0; i < s->count; i++) {
        h5_column *c = &s->columns[i];
        h5_release(c);
        if (c->set >= 0)
            H5Dclose(c->set);
        H5Tclose(c->type);
        H5Tclose(c->leaf);
        bags_buffer_free(&c->data);
        bags_buffer_free(&c->values);
    }
    s->count = 0;
}

/* Decide what the source is, and open its columns. */
static bags_code h5_open_layout(h5_source *s) {
    const char *found = NULL;
    const h5_column *other = NULL;
    bags_code code = h5_find(s, s->group, "", 0, false, &found);
    if (!code && !found) {
        code = h5_open_columns(s, s->group);
        if (!code)
            code = h5_rows_length(s, &other);
        if (!other)
            return code;
        bags_error *err = s->err;
        s->err = NULL; /* that of the lengths remains */
        bool episodes = !h5_find(s, s->group, "", 0, true, &found) && found;
        s->err = err;
        if (!episodes)
            return code;
        h5_drop_columns(s);
        code = BAGS_OK;
    }
    if (code)
        return code;
    s->episodes = true;
    if (*found) {
        hid_t group = H5Gopen2(s->group, found, H5P_DEFAULT);
        if (group < 0)
            return h5_fail(s, found);
        H5Gclose(s->group);
        s->group = group;
    }
    code = h5_list_group(s, s->group, false, &s->names);
    s->length = s->names.count;
    hid_t first =
        code ? -1 : H5Gopen2(s->group, h5_names(&s->names)[0], H5P_DEFAULT);
    if (!code)
        code = first < 0 ? h5_fail(s, found) : h5_open_columns(s, first);
    if (first >= 0)
        H5Gclose(first);
    return code;
}

static bags_code h5_open_fields(h5_source *s, bags_source_info *info) {
    size_t total = s->count + s->episodes;
    s->fields = (bags_field *)bags_import_alloc(
        &s->arena, total, sizeof *s->fields, s->err);
    s->entries = (bags_entry *)bags_import_alloc(
        &s->arena, total, sizeof *s->entries, s->err);
    if (!s->fields || !s->entries)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < s->count; i++) {
        char *name = bags_import_format(&s->arena, s->err, "%s%s",
            s->columns[i].path, s->columns[i].member);
        for (char *c = name; name && *c; c++)
            if (*c == '/')
                *c = '.';
        s->fields[i].name = name;
        s->fields[i].type = h5_type(s, &s->columns[i]);
        if (!name || !s->fields[i].type)
            return BAGS_ERROR_MEMORY;
    }
    if (s->episodes) {
        s->fields[s->count].name = "group";
        s->fields[s->count].type = "utf8";
        s->entries[s->count].values = &s->name;
        s->entries[s->count].count = 1;
    }
    bags_code code =
        bags_import_names(s->fields, total, s->path, &s->arena, s->err);
    for (size_t i = 0; !code && i < total; i++)
        s->entries[i].field = s->fields[i].name;
    info->fields = s->fields;
    info->count = total;
    info->length = s->length;
    return code;
}

/* Truncate FILE/GROUP to the file. False if there is none. */
static bool h5_split(char *path) {
    char *slash = path + strlen(path);
    while (slash && bags_import_kind(path) != BAGS_PATH_FILE) {
        *slash = 0;
        slash = strrchr(path, '/');
    }
    return slash != NULL;
}

/* Open the file and the group that a path names. */
static bags_code h5_open_file(h5_source *s, const char *path) {
    char *file = bags_import_text(&s->arena, path, strlen(path), s->err);
    if (!file)
        return BAGS_ERROR_MEMORY;
    s->path = file;
    if (!h5_split(file))
        return bags_fail(s->err, BAGS_ERROR_MISSING,
            "%s: cannot open: No such file or directory", path);
    const char *group = path + strlen(file);
    bags_import_file about = {NULL, NULL, 0};
    bags_code code = bags_import_file_open(&about, file, s->err);
    if (code)
        return code;
    s->file_size = about.size;
    bags_import_file_close(&about);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    s->file = H5Fopen(file, H5F_ACC_RDONLY, access);
    H5Pclose(access);
    if (s->file < 0)
        return h5_fail(s, "file");
    s->group = H5Gopen2(s->file, *group ? group : "/", H5P_DEFAULT);
    return s->group < 0 ? bags_fail(s->err, BAGS_ERROR_MISSING,
                              "%s: no group %s in it", s->path, group)
                        : BAGS_OK;
}

/* libhdf5 prints its errors unless this is called; one thread's, or all. */
typedef struct h5_quiet {
    H5E_auto2_t print;
    void *user;
} h5_quiet;

static h5_quiet h5_quiet_begin(void) {
    h5_quiet was = {NULL, NULL};
    H5Eget_auto2(H5E_DEFAULT, &was.print, &was.user);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    return was;
}

static void h5_quiet_end(h5_quiet was) {
    H5Eset_auto2(H5E_DEFAULT, was.print, was.user);
}

static void hdf5_close(void *source) {
    h5_source *s = (h5_source *)source;
    if (!s)
        return;
    h5_quiet quiet = h5_quiet_begin();
    h5_drop_columns(s);
    bags_buffer_free(&s->names.names);
    if (s->group >= 0)
        H5Gclose(s->group);
    if (s->file >= 0)
        H5Fclose(s->file);
    h5_quiet_end(quiet);
    bags_import_free(&s->scratch);
    bags_import_arena arena = s->arena;
    bags_import_free(&arena);
}

static bags_code hdf5_open(const char *path, const bags_allocator *allocator,
    void **source, bags_source_info *info, bags_error *err) {
    bags_import_arena arena = bags_import_arena_start(allocator);
    h5_source *s = (h5_source *)bags_import_alloc(&arena, 1, sizeof *s, err);
    if (!s)
        return BAGS_ERROR_MEMORY;
    s->arena = arena;
    s->scratch = bags_import_arena_start(allocator);
    if (allocator) {
        s->own = *allocator;
        s->allocator = &s->own;
    }
    s->file = s->group = -1;
    s->err = err;
    h5_quiet quiet = h5_quiet_begin();
    bags_code code = h5_open_file(s, path);
    if (!code)
        code = h5_open_layout(s);
    if (s->no_memory)
        code = bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    if (!code)
        code = h5_open_fields(s, info);
    h5_quiet_end(quiet);
    if (code)
        hdf5_close(s);
    else
        *source = s;
    return code;
}

/* Open the datasets of an episode, and check that they are those of the first. */
static bags_code h5_open_episode(h5_source *s, const char *name) {
    hid_t group = H5Gopen2(s->group, name, H5P_DEFAULT);
    h5_list list;
    size_t sets = 0;
    if (group < 0)
        return h5_fail(s, name);
    bags_code code = h5_list_group(s, group, true, &list);
    for (size_t i = 0; !code && i < s->count; i++) {
        h5_column *c = &s->columns[i];
        hsize_t dims[H5S_MAX_RANK];
        int rank = 0;
        size_t k = 0;
        while (k < list.count && strcmp(h5_names(&list)[k], c->path))
            k++;
        sets += i == 0 || strcmp(c->path, s->columns[i - 1].path) != 0;
        h5_release(c);
        if (c->set >= 0)
            H5Dclose(c->set);
        c->set = -1;
        if (k == list.count)
            code = bags_fail(s->err, BAGS_ERROR_TYPE,
                "%s: group %s: no dataset %s, which the first group has",
                s->path, name, c->path);
        else
            code = h5_open_set(s, group, c->path, &c->set, &rank, dims);
        if (code)
            break;
        hid_t type = H5Dget_type(c->set);
        bool same =
            rank == c->rank && (*c->member || H5Tequal(type, c->type) > 0);
        for (int d = 1; same && d < rank; d++)
            same = dims[d] == c->dims[d];
        H5Tclose(type);
        if (!same)
            code = bags_fail(s->err, BAGS_ERROR_TYPE,
                "%s: group %s: dataset %s differs in type or shape from that "
                "of the first group",
                s->path, name, c->path);
        c->dims[0] = rank > 0 ? dims[0] : 1;
    }
    if (!code && list.count != sets)
        code = bags_fail(s->err, BAGS_ERROR_TYPE,
            "%s: group %s: %" PRIu64
            " datasets, but the first group has %" PRIu64,
            s->path, name, (uint64_t)list.count, (uint64_t)sets);
    bags_buffer_free(&list.names);
    H5Gclose(group);
    return code;
}

static bags_code hdf5_read(
    void *source, uint64_t index, const bags_entry **entries, bags_error *err) {
    h5_source *s = (h5_source *)source;
    *entries = NULL;
    if (index >= s->length)
        return BAGS_OK;
    s->err = err;
    h5_quiet quiet = h5_quiet_begin();
    bags_code code = BAGS_OK;
    if (s->episodes) {
        const char *name = h5_names(&s->names)[index];
        s->name = bags_utf8(name);
        code = h5_open_episode(s, name);
    }
    for (size_t i = 0; !code && i < s->count; i++) {
        h5_column *c = &s->columns[i];
        code = h5_read_rows(
            s, c, s->episodes ? 0 : index, c->sequence ? c->dims[0] : 1);
        bags_value *values = (bags_value *)(void *)c->values.data;
        for (size_t row = 0; !code && row < c->rows; row++)
            values[row] = h5_value(c, row);
        s->entries[i].values = values;
        s->entries[i].count = c->rows;
    }
    h5_quiet_end(quiet);
    bags_import_reset(&s->scratch);
    if (!code)
        *entries = s->entries;
    return code;
}

static bool hdf5_detect(const char *path) {
    unsigned char start[8];
    bags_import_arena arena = bags_import_arena_start(NULL);
    char *file = bags_import_text(&arena, path, strlen(path), NULL);
    bool found = file && h5_split(file) &&
                 bags_import_peek(file, start, 8) == 8 &&
                 memcmp(start, "\x89HDF\r\n\x1A\n", 8) == 0;
    bags_import_free(&arena);
    return found;
}

const bags_importer bags_import_hdf5 = {
    "hdf5", hdf5_detect, hdf5_open, hdf5_read, hdf5_close};
