/*
 * hdf5.c - imports HDF5 files, using libhdf5 1.10 or later (Debian: libhdf5-dev).
 *
 * A source is a file or a group in it, FILE/GROUP. It has one of two layouts:
 *
 *     rows      datasets of equal length: datapoint i is row i of each. A scalar
 *               is repeated
 *     episodes  a group that contains groups with the same datasets, such as demo_0,
 *               demo_1: one datapoint per group, ordered by name, numbers by value.
 *               Datasets become sequences of their rows; the field "group" has the
 *               group's name
 *
 * The layout depends on lengths and groups, not on names. Episodes must contain all
 * datasets of the source: if a file has others, import FILE/GROUP. If such groups have
 * datasets of equal length, the layout must be stated (bags_source_options).
 *
 * A field is named after the path of its dataset, joined by dots. Each member of a
 * compound is a field, with the member's path appended.
 *
 *     integers   i64, u64; in arrays array(DTYPE,shape of a row)
 *     floats     array(DTYPE,shape of a row); so are Booleans of h5py (enums of FALSE
 *                = 0, TRUE = 1) and compounds of r and i, two float32 or two float64,
 *                which are complex numbers
 *     enums      their integers; the names are left out
 *     strings    utf8
 *     sequences  of variable length: array(DTYPE,-1)
 *     opaque     bytes; NumPy dates and times, as written by h5py: i64, with the unit
 *                after the field's name
 *
 * Rejected: references, bit fields, times, non-IEEE floats, arrays of strings in a row;
 * links to other names or files, and data in other files. Attributes and named types
 * are left out.
 */
#include "detect.h"
#include "try.h"

#include <hdf5.h>

#include <inttypes.h>
#include <stdlib.h>

#define H5_DEPTH 16                    /* maximum depth of groups, and of compounds */
#define H5_SMALL ((uint64_t)64 << 20)  /* bytes allowed for any dataset, ... */
#define H5_RATIO 1100                  /* ... and more bytes per stored byte */
#define H5_CACHE ((uint64_t)256 << 20) /* maximum bytes of cached chunks per dataset */

typedef enum h5_form {
    H5_NUMBER, /* an array, or an integer */
    H5_TEXT,   /* char * */
    H5_FIXED,  /* characters */
    H5_VLEN,   /* hvl_t */
    H5_BYTES
} h5_form;

/* A dataset. In memory its elements are packed and little-endian. */
typedef struct h5_set {
    const char *path;       /* from the group */
    hid_t set, file_type;   /* open while rows are being read */
    hid_t type;             /* type of an element in memory */
    bool sequence, reclaim; /* has memory that H5Dvlen_reclaim must free */
    size_t size;            /* bytes of an element */
    int rank;
    hsize_t dims[H5S_MAX_RANK];
    size_t cells; /* elements per row */
    size_t rows;  /* rows that were read, */
    bags_buffer *data;
    bool loaded;
} h5_set;

/* A field: a dataset's elements, or a member of these elements. */
typedef struct h5_column {
    size_t set;         /* index of the dataset */
    const char *member; /* "" or ".member.member" */
    h5_form form;
    bags_dtype dtype;
    bool integer;     /* values are integers, not arrays */
    const char *unit; /* NumPy unit of a date or time; otherwise NULL */
    bool big;         /* dates and times are big-endian: libhdf5 does not convert opaque
                       * types */
    H5T_str_t pad;
    int inner; /* dimensions of an array type: */
    hsize_t shape[H5S_MAX_RANK];
    size_t offset, size; /* within an element */
} h5_column;

/* The purpose of walking a group: list the names of its groups, list the paths of the
 * datasets below it, or report attributes and named types as left out. */
typedef enum h5_walk { H5_GROUPS, H5_PATHS, H5_REPORT } h5_walk;

typedef struct h5_list {
    h5_walk walk;
    const char **names;
    size_t count;
    size_t others; /* links to anything else, for H5_GROUPS */
    bags_code code;
} h5_list;

typedef struct h5_state {
    hid_t file, group;
    uint64_t file_size;
    bool episodes;
    h5_list names; /* names of episodes */
    h5_set *sets;
    size_t set_count;
    h5_column *columns;
    size_t count;
} h5_state;

/* ---- errors ---- */

/* The last entry is the innermost call and has the reason. For a missing filter, that
 * is the search for plugins, so skip it. */
static herr_t h5_describe(unsigned n, const H5E_error2_t *error, void *description) {
    (void)n;
    if (error->maj_num != H5E_PLUGIN)
        *(const char **)description = error->desc ? error->desc : "";
    return 0;
}

static bags_code h5_fail(bags_source *s, const char *where) {
    const char *why = "";
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, h5_describe, &why);
    bags_code code =
        bags_source_fail(s, BAGS_ERROR_CORRUPT, "%s: cannot read: %.200s", where, why);
    H5Eclear2(H5E_DEFAULT);
    return code;
}

/* Close all open objects. */
static void h5_done(hid_t id) {
    if (id > 0)
        H5Idec_ref(id);
}

static bags_code h5_refuse(
    bags_source *s, const char *path, const char *member, const char *what) {
    return bags_source_fail(s, BAGS_ERROR_TYPE, "dataset %s%s: %s", path, member, what);
}

/* ---- groups ---- */

typedef struct h5_visit {
    bags_source *s;
    h5_list *list;
    const char *prefix;
    int depth;
} h5_visit;

static void h5_add(bags_source *s, h5_list *list, const char *name) {
    list->names =
        (const char **)bags_source_grow(s, list->names, list->count, sizeof name);
    list->code = list->names ? BAGS_OK : BAGS_ERROR_MEMORY;
    if (list->names)
        list->names[list->count++] = name;
}

static herr_t h5_attribute(
    hid_t object, const char *name, const H5A_info_t *info, void *user) {
    const h5_visit *owner = (const h5_visit *)user;
    (void)object;
    (void)info;
    if (owner->s->metadata && !*owner->prefix && !strcmp(name, "info.json"))
        return 0;
    bags_source_leave_out(owner->s, "attribute", 1, "%s%s%s", owner->prefix,
        *owner->prefix ? "@" : "", name);
    return 0;
}

/* Report the attributes of a group or dataset as left out. */
static herr_t h5_attributes(bags_source *s, hid_t object, const char *path) {
    h5_visit owner = {s, NULL, path, 0};
    hsize_t at = 0;
    return H5Aiterate2(
        object, H5_INDEX_NAME, H5_ITER_NATIVE, &at, h5_attribute, &owner);
}

/* Add the target of a link: a list of paths gets the datasets here and below; a list of
 * groups gets groups, while datasets are counted. */
static herr_t h5_link(
    hid_t group, const char *name, const H5L_info_t *info, void *user) {
    h5_visit *visit = (h5_visit *)user;
    h5_visit inner = *visit;
    bags_source *s = visit->s;
    h5_list *list = visit->list;
    bool paths = list->walk != H5_GROUPS;
    const char *path = bags_source_format(s, "%s%s", visit->prefix, name);
    list->code = path ? BAGS_OK : BAGS_ERROR_MEMORY;
    if (path && info->type != H5L_TYPE_HARD)
        list->code = bags_source_fail(s, BAGS_ERROR_TYPE,
            "%s: links to other names or files are not followed", path);
    if (list->code)
        return -1;
    hid_t object = H5Oopen(group, name, H5P_DEFAULT);
    H5I_type_t kind = object < 0 ? H5I_BADID : H5Iget_type(object);
    herr_t result = 0;
    if (kind != H5I_BADID && list->walk == H5_REPORT)
        result = h5_attributes(s, object, path);
    if (result < 0) {
        list->code = list->code ? list->code : h5_fail(s, path);
    } else if (kind == H5I_BADID) {
        list->code = h5_fail(s, path);
    } else if (paths && kind == H5I_GROUP && visit->depth < H5_DEPTH) {
        inner.depth++;
        inner.prefix = bags_source_format(s, "%s/", path);
        if (!inner.prefix)
            list->code = BAGS_ERROR_MEMORY;
        else
            result =
                H5Literate(object, H5_INDEX_NAME, H5_ITER_INC, NULL, h5_link, &inner);
    } else if (paths && kind == H5I_GROUP) {
        list->code = bags_source_fail(s, BAGS_ERROR_LIMIT,
            "%s: groups are nested too deeply (maximum %d)", path, H5_DEPTH);
    } else if (kind == (paths ? H5I_DATASET : H5I_GROUP)) {
        h5_add(s, list, path);
    } else {
        list->others++;
        if (list->walk == H5_REPORT)
            bags_source_leave_out(s, "named type", 1, "%s", path);
    }
    h5_done(object);
    return list->code || result < 0 ? -1 : 0;
}

/* List a group's groups, or the paths of its datasets. */
static bags_code h5_list_group(
    bags_source *s, hid_t group, h5_walk walk, h5_list *list) {
    h5_visit visit = {s, list, "", 0};
    memset(list, 0, sizeof *list);
    list->walk = walk;
    if (((walk == H5_REPORT && h5_attributes(s, group, "") < 0) ||
            H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, NULL, h5_link, &visit) < 0) &&
        !list->code)
        list->code = h5_fail(s, "a group");
    if (!list->code && list->count > 0)
        qsort(list->names, list->count, sizeof(char *), bags_import_compare);
    return list->code;
}

/* The same for a group inside a group. */
static bags_code h5_list_inner(
    bags_source *s, hid_t group, const char *name, h5_walk walk, h5_list *list) {
    memset(list, 0, sizeof *list);
    hid_t inner = H5Gopen2(group, name, H5P_DEFAULT);
    if (inner < 0)
        return h5_fail(s, name);
    bags_code code = h5_list_group(s, inner, walk, list);
    h5_done(inner);
    return code;
}

/* ---- types ---- */

/* libhdf5 1.10 does not check that the parts of a type lie within it: converting such a
 * type would write out of bounds. */
static bool h5_is_sound(hid_t type) {
    H5T_class_t kind = H5Tget_class(type);
    size_t size = H5Tget_size(type), part;
    bool sound = true;
    if (kind == H5T_COMPOUND) {
        int members = H5Tget_nmembers(type);
        for (int i = 0; sound && i < members; i++) {
            hid_t member = H5Tget_member_type(type, (unsigned)i);
            size_t offset = H5Tget_member_offset(type, (unsigned)i);
            part = H5Tget_size(member);
            sound = member >= 0 && part > 0 && part <= size && offset <= size - part;
            h5_done(member);
        }
    } else if (kind == H5T_ARRAY || kind == H5T_ENUM) {
        hsize_t dims[H5S_MAX_RANK];
        hid_t base = H5Tget_super(type);
        int rank = kind == H5T_ARRAY ? H5Tget_array_dims2(type, dims) : 0;
        part = H5Tget_size(base);
        for (int i = 0; i < rank && part <= size; i++)
            part = dims[i] > size / part ? size + 1 : part * (size_t)dims[i];
        sound = base >= 0 && rank >= 0 && part == size;
        h5_done(base);
    }
    return sound;
}

/* The little-endian type for integers and floats of either byte order, and their dtype;
 * below 0 for any other type, for example if not all bits are used. */
static hid_t h5_plain(hid_t type, bags_dtype *dtype) {
    const struct h5_standard {
        bags_dtype dtype;
        hid_t little, big;
    } standards[] = {{BAGS_DTYPE_UINT8, H5T_STD_U8LE, H5T_STD_U8BE},
        {BAGS_DTYPE_UINT16, H5T_STD_U16LE, H5T_STD_U16BE},
        {BAGS_DTYPE_UINT32, H5T_STD_U32LE, H5T_STD_U32BE},
        {BAGS_DTYPE_UINT64, H5T_STD_U64LE, H5T_STD_U64BE},
        {BAGS_DTYPE_INT8, H5T_STD_I8LE, H5T_STD_I8BE},
        {BAGS_DTYPE_INT16, H5T_STD_I16LE, H5T_STD_I16BE},
        {BAGS_DTYPE_INT32, H5T_STD_I32LE, H5T_STD_I32BE},
        {BAGS_DTYPE_INT64, H5T_STD_I64LE, H5T_STD_I64BE},
        {BAGS_DTYPE_FLOAT32, H5T_IEEE_F32LE, H5T_IEEE_F32BE},
        {BAGS_DTYPE_FLOAT64, H5T_IEEE_F64LE, H5T_IEEE_F64BE}};
    for (size_t i = 0; i < sizeof standards / sizeof *standards; i++) {
        *dtype = standards[i].dtype;
        if (H5Tequal(type, standards[i].little) > 0 ||
            H5Tequal(type, standards[i].big) > 0)
            return H5Tcopy(standards[i].little);
    }
    /* libhdf5 has no built-in float16. */
    hid_t half = H5Tcopy(H5T_IEEE_F32LE), big;
    H5Tset_fields(half, 15, 10, 5, 0, 10);
    H5Tset_size(half, 2);
    H5Tset_ebias(half, 15);
    big = H5Tcopy(half);
    H5Tset_order(big, H5T_ORDER_BE);
    bool is_half = H5Tequal(type, half) > 0 || H5Tequal(type, big) > 0;
    h5_done(big);
    *dtype = is_half ? BAGS_DTYPE_FLOAT16 : BAGS_DTYPE_NONE;
    if (is_half)
        return half;
    h5_done(half);
    return -1;
}

/* True if a compound has the members r and i, both float32 or both float64, as h5py
 * writes complex numbers. */
static bool h5_is_complex(hid_t type) {
    bags_dtype dtypes[2] = {BAGS_DTYPE_NONE, BAGS_DTYPE_NONE};
    if (H5Tget_class(type) != H5T_COMPOUND || H5Tget_nmembers(type) != 2 ||
        H5Tget_member_index(type, "r") != 0 || H5Tget_member_index(type, "i") != 1 ||
        !h5_is_sound(type))
        return false;
    for (unsigned i = 0; i < 2; i++) {
        hid_t part = H5Tget_member_type(type, i);
        hid_t plain = h5_plain(part, &dtypes[i]);
        h5_done(plain);
        h5_done(part);
    }
    return dtypes[0] == dtypes[1] &&
           (dtypes[0] == BAGS_DTYPE_FLOAT32 || dtypes[0] == BAGS_DTYPE_FLOAT64);
}

/* True if an enum is FALSE = 0, TRUE = 1, as h5py writes Booleans. */
static bool h5_is_bool(hid_t type) {
    signed char no = -1, yes = -1;
    int first = H5Tget_member_index(type, "FALSE");
    int second = H5Tget_member_index(type, "TRUE");
    return H5Tget_size(type) == 1 && H5Tget_nmembers(type) == 2 && first >= 0 &&
           second >= 0 && H5Tget_member_value(type, (unsigned)first, &no) >= 0 &&
           H5Tget_member_value(type, (unsigned)second, &yes) >= 0 && no == 0 &&
           yes == 1;
}

/* The little-endian memory type for numbers of this type, and their dtype; below 0 if
 * they are not numbers. */
static hid_t h5_number(hid_t type, bags_dtype *dtype) {
    hid_t memory = -1, base = -1;
    if (H5Tget_class(type) == H5T_ENUM && h5_is_sound(type)) {
        base = H5Tget_super(type);
        memory = h5_plain(base, dtype);
        if (*dtype == BAGS_DTYPE_INT8 && h5_is_bool(type))
            *dtype = BAGS_DTYPE_BOOL;
    } else if (h5_is_complex(type)) {
        base = H5Tget_member_type(type, 0);
        hid_t part = h5_plain(base, dtype);
        size_t size = bags_dtype_size(*dtype);
        *dtype =
            *dtype == BAGS_DTYPE_FLOAT32 ? BAGS_DTYPE_COMPLEX64 : BAGS_DTYPE_COMPLEX128;
        memory = H5Tcreate(H5T_COMPOUND, 2 * size);
        H5Tinsert(memory, "r", 0, part);
        H5Tinsert(memory, "i", size, part);
        h5_done(part);
    } else {
        memory = h5_plain(type, dtype);
    }
    h5_done(base);
    return memory;
}

/* Report the parts of a type that no field contains: the names of an enum, and the tag
 * of an opaque type, unless it marks a NumPy date or time, whose unit is copied. */
static bags_code h5_report_type(
    bags_source *s, const h5_set *set, h5_column *c, hid_t type) {
    bags_code code = BAGS_OK;
    bool is_opaque = H5Tget_class(type) == H5T_OPAQUE;
    bool has_names = H5Tget_class(type) == H5T_ENUM && c->dtype != BAGS_DTYPE_BOOL;
    int names = has_names ? H5Tget_nmembers(type) : 0;
    char *tag = is_opaque ? H5Tget_tag(type) : NULL;
    if (tag && strlen(tag) > 10 && !memcmp(tag, "NUMPY:", 6) && strchr("<>", tag[6]) &&
        strchr("Mm", tag[7]) && !memcmp(tag + 8, "8[", 2) && H5Tget_size(type) == 8) {
        c->big = tag[6] == '>';
        c->unit = bags_source_text(s, tag + 10, strcspn(tag + 10, "]"));
    } else if (tag && *tag) {
        bags_source_leave_out(
            s, "opaque tag", 1, "%s%s: %s", set->path, c->member, tag);
    }
    H5free_memory(tag);
    for (int i = 0; !code && i < names; i++) {
        char *name = H5Tget_member_name(type, (unsigned)i);
        if (name)
            bags_source_leave_out(
                s, "enum name", 1, "%s%s: %s", set->path, c->member, name);
        else
            code = h5_fail(s, set->path);
        H5free_memory(name);
    }
    return code;
}

/* Add the column for elements of this type (not a compound). *memory receives their
 * type in memory. */
static bags_code h5_leaf(bags_source *s, h5_set *set, hid_t type, const char *member,
    size_t offset, hid_t *memory) {
    h5_state *h = (h5_state *)s->state;
    H5T_class_t kind = H5Tget_class(type);
    h5_column *columns =
        (h5_column *)bags_source_grow(s, h->columns, h->count, sizeof *columns);
    if (!columns)
        return BAGS_ERROR_MEMORY;
    h->columns = columns;
    h5_column *c = &columns[h->count++];
    memset(c, 0, sizeof *c);
    c->set = h->set_count - 1;
    c->member = member;
    c->offset = offset;
    bags_code code = BAGS_OK;
    if (kind == H5T_OPAQUE)
        code = h5_report_type(s, set, c, type);
    if (c->unit) {
        c->dtype = BAGS_DTYPE_INT64;
        *memory = H5Tcopy(type);
    } else if (kind == H5T_STRING || kind == H5T_OPAQUE) {
        c->form = kind == H5T_OPAQUE             ? H5_BYTES
                  : H5Tis_variable_str(type) > 0 ? H5_TEXT
                                                 : H5_FIXED;
        c->pad = kind == H5T_STRING ? H5Tget_strpad(type) : H5T_STR_ERROR;
        *memory = H5Tcopy(type);
    } else if (kind == H5T_VLEN || kind == H5T_ARRAY) {
        hid_t base = H5Tget_super(type), number = h5_number(base, &c->dtype);
        if (kind == H5T_VLEN)
            c->form = H5_VLEN;
        else
            c->inner = H5Tget_array_dims2(type, c->shape);
        if (number >= 0 && c->inner >= 0 && h5_is_sound(type))
            *memory = kind == H5T_VLEN
                          ? H5Tvlen_create(number)
                          : H5Tarray_create2(number, (unsigned)c->inner, c->shape);
        if (number >= 0) {
            h5_done(number);
            code = h5_report_type(s, set, c, base);
        }
        h5_done(base);
    } else {
        *memory = h5_number(type, &c->dtype);
        if (*memory >= 0)
            code = h5_report_type(s, set, c, type);
    }
    if (code)
        return code;
    if (*memory < 0)
        return h5_refuse(s, set->path, member,
            kind == H5T_REFERENCE  ? "references are not supported"
            : kind == H5T_BITFIELD ? "bit fields are not supported"
                                   : "its type is not supported");
    c->size = H5Tget_size(*memory);
    set->reclaim = set->reclaim || c->form == H5_TEXT || c->form == H5_VLEN;
    return BAGS_OK;
}

/* Add the columns for elements of this type, one per member of a compound. *memory
 * receives their type in memory. */
static bags_code h5_columns(bags_source *s, h5_set *set, hid_t type, const char *member,
    size_t offset, int depth, hid_t *memory) {
    bags_code code = BAGS_OK;
    if (H5Tget_class(type) != H5T_COMPOUND || h5_is_complex(type))
        return h5_leaf(s, set, type, member, offset, memory);
    if (depth == H5_DEPTH)
        return h5_refuse(s, set->path, member, "nested too deeply");
    if (!h5_is_sound(type))
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "dataset %s%s: a member is not within its compound", set->path, member);
    int members = H5Tget_nmembers(type);
    for (size_t i = 0, size = 0; !code && i < (size_t)members; i++) {
        char *name = H5Tget_member_name(type, (unsigned)i);
        hid_t from = H5Tget_member_type(type, (unsigned)i), part = -1;
        const char *full = name ? bags_source_format(s, "%s.%s", member, name) : "";
        code = !name || from < 0 ? h5_fail(s, set->path)
               : !full
                   ? BAGS_ERROR_MEMORY
                   : h5_columns(s, set, from, full, offset + size, depth + 1, &part);
        if (!code) {
            size_t more = H5Tget_size(part);
            if (*memory < 0)
                *memory = H5Tcreate(H5T_COMPOUND, more);
            else
                H5Tset_size(*memory, size + more);
            if (H5Tinsert(*memory, name, size, part) < 0)
                code = h5_fail(s, set->path);
            size += more;
        }
        h5_done(part);
        h5_done(from);
        H5free_memory(name);
    }
    return code;
}

/* ---- datasets ---- */

/* Cache the chunks that a row is in; otherwise each would be read again. */
static void h5_set_cache(
    hid_t access, hid_t type, int rank, const hsize_t *dims, hid_t how) {
    hsize_t chunk[H5S_MAX_RANK];
    if (rank <= 0 || H5Pget_layout(how) != H5D_CHUNKED ||
        H5Pget_chunk(how, rank, chunk) != rank)
        return;
    size_t size = H5Tget_size(type);
    double bytes = (double)size * (double)chunk[0], chunks = 1;
    for (int d = 1; d < rank; d++) {
        chunks *= (double)((dims[d] + chunk[d] - 1) / chunk[d]);
        bytes *= (double)chunk[d];
    }
    bytes *= chunks;
    if (bytes > (double)H5_CACHE)
        bytes = (double)H5_CACHE;
    H5Pset_chunk_cache(access, chunks < 5000 ? 10007 : 100003,
        bytes < 1 << 20 ? 1 << 20 : (size_t)bytes, 1.0);
}

/* True if a contiguous dataset has fewer bytes than its elements need: libhdf5 1.10
 * would read past the end. */
static bool h5_is_short(hid_t set, hid_t type, hid_t space, hid_t how) {
    hsize_t stored = H5Dget_storage_size(set), size = H5Tget_size(type);
    hssize_t count = H5Sget_simple_extent_npoints(space);
    H5D_layout_t layout = H5Pget_layout(how);
    bool written = layout == H5D_COMPACT || stored > 0 ||
                   (layout == H5D_CONTIGUOUS && H5Dget_offset(set) != HADDR_UNDEF);
    return layout != H5D_CHUNKED && written &&
           (count < 0 || size == 0 || (hsize_t)count > stored / size);
}

/* Open a dataset and get its type and shape. */
static bags_code h5_open_set(bags_source *s, hid_t group, const char *path, h5_set *c) {
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    hid_t set = H5Dopen2(group, path, access);
    hid_t space = H5Dget_space(set), how = H5Dget_create_plist(set);
    H5S_class_t kind = H5Sget_simple_extent_type(space);
    c->file_type = H5Dget_type(set);
    c->rank = kind == H5S_SCALAR ? 0 : H5Sget_simple_extent_dims(space, c->dims, NULL);
    bags_code code = BAGS_OK;
    if (set < 0 || space < 0 || how < 0 || c->rank < 0 || c->file_type < 0)
        code = h5_fail(s, path);
    else if (kind != H5S_SCALAR && kind != H5S_SIMPLE)
        code = h5_refuse(s, path, "", "it has no shape (an empty dataset)");
    else if (H5Pget_layout(how) == H5D_VIRTUAL || H5Pget_external_count(how) > 0)
        code = h5_refuse(s, path, "", "its data are in other files");
    else if (h5_is_short(set, c->file_type, space, how))
        code = bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "dataset %s: fewer bytes than its shape requires", path);
    else
        h5_set_cache(access, c->file_type, c->rank, c->dims, how);
    h5_done(set);
    c->set = code ? 0 : H5Dopen2(group, path, access);
    h5_done(space);
    h5_done(how);
    h5_done(access);
    return code || c->set >= 0 ? code : h5_fail(s, path);
}

/* Compute the number of elements in a row, and check it against the stored bytes. */
static bags_code h5_cells(bags_source *s, h5_set *c, uint64_t rows) {
    uint64_t stored = H5Dget_storage_size(c->set);
    uint64_t file_size = ((h5_state *)s->state)->file_size;
    if (stored > file_size)
        stored = file_size;
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
        return bags_source_fail(s, BAGS_ERROR_LIMIT,
            "dataset %s: too large (more than %" PRIu64 " bytes from %" PRIu64
            " stored)",
            c->path, most, stored);
    return BAGS_OK;
}

static void h5_release(h5_set *c) {
    hsize_t count = c->rows * c->cells;
    if (c->loaded && c->reclaim && count > 0) {
        hid_t space = H5Screate_simple(1, &count, NULL);
        H5Dvlen_reclaim(c->type, space, H5P_DEFAULT, c->data->data);
        h5_done(space);
    }
    c->loaded = false;
}

/* Read rows of a dataset, or a scalar. */
static bags_code h5_read_rows(
    bags_source *s, h5_set *c, uint64_t start, uint64_t rows) {
    h5_release(c);
    bags_code code = h5_cells(s, c, rows);
    size_t size = code ? 0 : (size_t)rows * c->cells * c->size;
    c->rows = (size_t)rows;
    if (!code)
        code = bags_source_reserve(s, &c->data, size);
    if (code || size == 0)
        return code;
    memset(c->data->data, 0, size);
    hid_t from = H5Dget_space(c->set);
    hsize_t part[H5S_MAX_RANK], first[H5S_MAX_RANK] = {0};
    memcpy(part, c->dims, sizeof part);
    first[0] = start;
    part[0] = rows;
    /* The rank must be the same, or libhdf5 would select every element. */
    hid_t to =
        c->rank > 0 ? H5Screate_simple(c->rank, part, NULL) : H5Screate(H5S_SCALAR);
    if (c->rank > 0)
        H5Sselect_hyperslab(from, H5S_SELECT_SET, first, NULL, part, NULL);
    /* After a failure, the content is unknown. */
    c->loaded = H5Dread(c->set, c->type, to, from, H5P_DEFAULT, c->data->data) >= 0;
    if (!c->loaded)
        code = h5_fail(s, c->path);
    h5_done(from);
    h5_done(to);
    return code;
}

/* Set the value of a row already read. */
static bags_code h5_value(bags_source *s, const h5_set *set, const h5_column *c,
    size_t row, bags_value *out) {
    unsigned char *data = set->data->data + row * set->cells * set->size + c->offset;
    size_t size = set->cells * c->size;
    for (size_t i = 0; c->big && i < set->cells; i++)
        bags_swap_bytes(data + i * set->size, data + i * set->size, 8, 8);
    if (c->form == H5_TEXT) {
        char *text;
        memcpy(&text, data, sizeof text);
        *out = bags_utf8(text ? text : "");
    } else if (c->form == H5_FIXED) {
        const void *end = c->pad == H5T_STR_NULLTERM ? memchr(data, 0, size) : NULL;
        char pad = c->pad == H5T_STR_SPACEPAD ? ' ' : 0;
        if (end)
            size = (size_t)((const unsigned char *)end - data);
        while (size > 0 && data[size - 1] == pad)
            size--;
        *out = bags_utf8_sized((const char *)data, size);
    } else if (c->form == H5_VLEN) {
        hvl_t list;
        memcpy(&list, data, sizeof list);
        *out = bags_blob(list.p, list.len * bags_dtype_size(c->dtype));
    } else if (c->integer) {
        *out = bags_import_integer(c->dtype, data);
    } else if (set->cells > 1 && c->size < set->size) {
        /* Gather the member from several compounds. */
        unsigned char *copy = (unsigned char *)bags_source_alloc(s, size, 1);
        if (!copy)
            return BAGS_ERROR_MEMORY;
        for (size_t i = 0; i < set->cells; i++)
            memcpy(copy + i * c->size, data + i * set->size, c->size);
        *out = bags_blob(copy, size);
    } else {
        *out = bags_blob(data, size);
    }
    return BAGS_OK;
}

/* ---- open ---- */

static bags_code h5_add_field(bags_source *s, h5_column *c) {
    const h5_set *set = &((h5_state *)s->state)->sets[c->set];
    uint64_t shape[H5S_MAX_RANK * 2], any = UINT64_MAX;
    size_t dims = 0;
    const char *type = c->form == H5_BYTES ? "bytes" : "utf8";
    for (int d = 1; d < set->rank; d++)
        shape[dims++] = set->dims[d];
    if (dims > 0 && c->form != H5_NUMBER)
        return h5_refuse(s, set->path, c->member, "rows of several strings");
    for (int d = 0; d < c->inner; d++)
        shape[dims++] = c->shape[d];
    if (dims > BAGS_MAX_DIMS)
        return h5_refuse(s, set->path, c->member, "too many dimensions");
    c->integer = c->form == H5_NUMBER && dims == 0 && bags_import_is_integer(c->dtype);
    type = c->form == H5_VLEN
               ? bags_source_number_type(s, c->dtype, 1, &any, set->sequence)
           : c->form == H5_NUMBER
               ? bags_source_number_type(s, c->dtype, dims, shape, set->sequence)
               : bags_source_format(s, "%s%s", type, set->sequence ? "[]" : "");
    char *name = bags_source_format(s, "%s%s", set->path, c->member);
    if (c->unit)
        name = bags_source_unit(s, name, c->unit);
    for (char *at = name; at && *at; at++)
        if (*at == '/')
            *at = '.';
    bags_source_field(s, name, type);
    return BAGS_OK;
}

/* Add all datasets in a group, and their columns. */
static bags_code h5_open_sets(bags_source *s, hid_t group) {
    h5_state *h = (h5_state *)s->state;
    h5_list list;
    FORMAT_TRY(h5_list_group(s, group, H5_PATHS, &list));
    h->sets = (h5_set *)bags_source_alloc(s, list.count, sizeof *h->sets);
    if (!h->sets)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < list.count; i++) {
        h5_set *set = &h->sets[h->set_count++];
        set->path = list.names[i];
        set->type = -1;
        FORMAT_TRY(h5_open_set(s, group, set->path, set));
        set->sequence = h->episodes && set->rank > 0;
        FORMAT_TRY(h5_columns(s, set, set->file_type, "", 0, 0, &set->type));
        set->size = set->type < 0 ? 0 : H5Tget_size(set->type);
        FORMAT_TRY(h5_cells(s, set, 1));
    }
    if (h->count == 0)
        return bags_source_fail(s, BAGS_ERROR_MISSING, "no dataset in it");
    return BAGS_OK;
}

static void h5_close_set(h5_set *c) {
    h5_release(c);
    h5_done(c->set);
    h5_done(c->file_type);
    c->set = c->file_type = 0;
}

static void h5_drop_sets(h5_state *h) {
    for (size_t i = 0; i < h->set_count; i++) {
        h5_close_set(&h->sets[i]);
        h5_done(h->sets[i].type);
    }
    h->count = h->set_count = 0;
}

/* ---- layout ---- */

/* The possible layouts of a group's datasets. */
typedef struct h5_readings {
    size_t sets;               /* the number of datasets */
    const char *first, *other; /* datasets of unequal length; other NULL: none */
    uint64_t length, other_length;
    const char *path; /* path of the group whose groups contain all datasets: ".",
                       * "./data" */
    h5_list groups;   /* its groups; `others` is nonzero if it also has datasets */
    bool same;        /* the groups have the same datasets */
} h5_readings;

/* Find the lengths of all datasets. */
static bags_code h5_compare(bags_source *s, h5_readings *r) {
    h5_state *h = (h5_state *)s->state;
    h5_list list;
    bags_code code = h5_list_group(s, h->group, H5_REPORT, &list);
    r->sets = code ? 0 : list.count;
    for (size_t i = 0; i < r->sets; i++) {
        const char *path = list.names[i];
        h5_set set;
        memset(&set, 0, sizeof set);
        code = h5_open_set(s, h->group, path, &set);
        h5_close_set(&set);
        if (code)
            return code;
        if (set.rank > 0 && !r->first) {
            r->first = path;
            r->length = set.dims[0];
        } else if (set.rank > 0 && !r->other && set.dims[0] != r->length) {
            r->other = path;
            r->other_length = set.dims[0];
        }
    }
    return code;
}

/* Find the group whose groups contain all datasets. If a group has a single member that
 * contains only groups, descend into that member. */
static bags_code h5_find_groups(bags_source *s, h5_readings *r) {
    h5_state *h = (h5_state *)s->state;
    r->path = ".";
    bags_code code = h5_list_inner(s, h->group, r->path, H5_GROUPS, &r->groups);
    while (!code && r->groups.count == 1 && r->groups.others == 0) {
        h5_list inner;
        const char *path = bags_source_format(s, "%s/%s", r->path, r->groups.names[0]);
        if (!path)
            return BAGS_ERROR_MEMORY;
        code = h5_list_inner(s, h->group, path, H5_GROUPS, &inner);
        if (code || inner.others > 0 || inner.count == 0)
            break;
        r->path = path;
        r->groups = inner;
    }
    return code;
}

/* Compare the first and the last group. If a group in between has different datasets,
 * read returns an error. */
static bags_code h5_compare_groups(bags_source *s, h5_readings *r) {
    h5_state *h = (h5_state *)s->state;
    const char *names[2] = {r->groups.names[0], r->groups.names[r->groups.count - 1]};
    h5_list lists[2];
    for (size_t i = 0; i < 2; i++) {
        const char *path = bags_source_format(s, "%s/%s", r->path, names[i]);
        if (!path)
            return BAGS_ERROR_MEMORY;
        FORMAT_TRY(h5_list_inner(s, h->group, path, H5_PATHS, &lists[i]));
    }
    r->same = lists[0].count > 0 && lists[0].count == lists[1].count;
    for (size_t i = 0; r->same && i < lists[0].count; i++)
        r->same = strcmp(lists[0].names[i], lists[1].names[i]) == 0;
    return BAGS_OK;
}

/* Suggest importing a group of the source. */
static bags_code h5_fail_layout(
    bags_source *s, const h5_readings *r, const char *what) {
    const char *group = r->groups.count > 0 ? r->groups.names[0] : "GROUP";
    return bags_source_fail(s, BAGS_ERROR_TYPE,
        "%s; import a group of it, such as FILE%.200s/%.200s", what, r->path + 1,
        group);
}

/* Decide whether the source has the layout of episodes. */
static bags_code h5_decide(bags_source *s, h5_readings *r, bool *are_episodes) {
    bags_source_layout layout = s->options.layout;
    memset(r, 0, sizeof *r);
    FORMAT_TRY(h5_compare(s, r));
    FORMAT_TRY(h5_find_groups(s, r));
    if (r->groups.count > 0 && r->groups.others == 0)
        FORMAT_TRY(h5_compare_groups(s, r));
    *are_episodes =
        layout == BAGS_LAYOUT_EPISODES ||
        (layout == BAGS_LAYOUT_DETECT && r->other && r->same && r->groups.count > 1);
    if (*are_episodes && !r->same)
        return h5_fail_layout(s, r,
            "not episodes: no groups that have the same datasets, and all of them");
    if (*are_episodes)
        return BAGS_OK;
    if (r->other) {
        const char *what = bags_source_format(s,
            "the datasets differ in length (%.200s %" PRIu64 ", %.200s %" PRIu64 ")",
            r->first, r->length, r->other, r->other_length);
        return what ? h5_fail_layout(s, r, what) : BAGS_ERROR_MEMORY;
    }
    if (layout == BAGS_LAYOUT_DETECT && r->same && r->groups.count > 1)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "ambiguous: a datapoint may be a row of all %" PRIu64 " datasets (%" PRIu64
            " of each), or one of %" PRIu64 " groups (%.200s, ...); pass --layout rows "
            "or --layout episodes",
            (uint64_t)r->sets, r->length, (uint64_t)r->groups.count,
            r->groups.names[0]);
    return BAGS_OK;
}

/* Decide the layout of the source, and open its columns. */
static bags_code h5_open_layout(bags_source *s) {
    h5_state *h = (h5_state *)s->state;
    h5_readings found;
    FORMAT_TRY(h5_decide(s, &found, &h->episodes));
    if (!h->episodes) {
        s->length = found.first ? found.length : 1;
        return h5_open_sets(s, h->group);
    }
    hid_t group = H5Gopen2(h->group, found.path, H5P_DEFAULT);
    if (group < 0)
        return h5_fail(s, found.path);
    h5_done(h->group);
    h->group = group;
    h->names = found.groups;
    s->length = h->names.count;
    hid_t first = H5Gopen2(group, h->names.names[0], H5P_DEFAULT);
    bags_code code = first < 0 ? h5_fail(s, found.path) : h5_open_sets(s, first);
    h5_done(first);
    return code;
}

/* Open the file and group named by a path. */
static bags_code h5_open_file(bags_source *s) {
    h5_state *h = (h5_state *)s->state;
    char *file = bags_source_text(s, s->path, strlen(s->path));
    if (!file)
        return BAGS_ERROR_MEMORY;
    if (!bags_import_hdf5_file(file))
        return bags_source_fail(
            s, BAGS_ERROR_MISSING, "cannot open: No such file or directory");
    const char *group = s->path + strlen(file);
    bags_code code = bags_source_open_file(s, file);
    if (code)
        return code;
    h->file_size = s->file.size;
    bags_source_close_file(s);
    s->where = file;
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    h->file = H5Fopen(file, H5F_ACC_RDONLY, access);
    if (h->file < 0)
        code = h5_fail(s, "file"); /* another call would lose the reason */
    h5_done(access);
    if (code)
        return code;
    h->group = H5Gopen2(h->file, *group ? group : "/", H5P_DEFAULT);
    return h->group < 0
               ? bags_source_fail(s, BAGS_ERROR_MISSING, "no group %s in it", group)
               : BAGS_OK;
}

/* The exporter's metadata: a string, the attribute "info.json" of the file. */
static void h5_read_metadata(bags_source *s) {
    const h5_state *h = (const h5_state *)s->state;
    char *text = NULL;
    if (H5Aexists(h->file, "info.json") <= 0)
        return;
    hid_t attribute = H5Aopen(h->file, "info.json", H5P_DEFAULT);
    hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    bool fits = type >= 0 && space >= 0 && H5Tis_variable_str(type) > 0 &&
                H5Sget_simple_extent_npoints(space) == 1;
    if (fits && H5Aread(attribute, type, &text) >= 0 && text) {
        bags_source_metadata(s, text, strlen(text), "@info.json");
        H5Dvlen_reclaim(type, space, H5P_DEFAULT, &text);
    }
    h5_done(space);
    h5_done(type);
    h5_done(attribute);
}

static bags_code h5_open_source(bags_source *s) {
    h5_state *h = (h5_state *)s->state;
    FORMAT_TRY(h5_open_file(s));
    h5_read_metadata(s);
    FORMAT_TRY(h5_open_layout(s));
    for (size_t i = 0; i < h->count; i++)
        FORMAT_TRY(h5_add_field(s, &h->columns[i]));
    if (h->episodes)
        bags_source_field(s, "group", "utf8");
    return BAGS_OK;
}

/* Open the datasets of an episode, and check that they match the first episode's. */
static bags_code h5_open_episode(bags_source *s, const char *name) {
    h5_state *h = (h5_state *)s->state;
    hid_t group = H5Gopen2(h->group, name, H5P_DEFAULT);
    h5_list list;
    if (group < 0)
        return h5_fail(s, name);
    bags_code code = h5_list_group(s, group, H5_PATHS, &list);
    for (size_t i = 0; !code && i < h->set_count; i++) {
        h5_set *c = &h->sets[i];
        h5_release(c);
        h5_set old = *c;
        size_t k = 0;
        while (k < list.count && strcmp(list.names[k], c->path))
            k++;
        c->set = c->file_type = 0;
        code = k < list.count
                   ? h5_open_set(s, group, c->path, c)
                   : bags_source_fail(s, BAGS_ERROR_TYPE,
                         "group %s: dataset %s is missing (the first group has it)",
                         name, c->path);
        bool same =
            !code && c->rank == old.rank && H5Tequal(c->file_type, old.file_type) > 0;
        for (int d = 1; same && d < c->rank; d++)
            same = c->dims[d] == old.dims[d];
        if (!code && !same)
            code = bags_source_fail(s, BAGS_ERROR_TYPE,
                "group %s: dataset %s differs in type or shape from the first "
                "group",
                name, c->path);
        h5_close_set(&old);
    }
    if (!code && list.count != h->set_count)
        code = bags_source_fail(s, BAGS_ERROR_TYPE,
            "group %s: %" PRIu64 " datasets, but the first group has %" PRIu64, name,
            (uint64_t)list.count, (uint64_t)h->set_count);
    h5_done(group);
    return code;
}

/* Read the rows of all columns from `start` on. */
static bags_code h5_read_columns(bags_source *s, uint64_t start) {
    h5_state *h = (h5_state *)s->state;
    for (size_t i = 0; i < h->set_count; i++)
        FORMAT_TRY(h5_read_rows(
            s, &h->sets[i], start, h->sets[i].sequence ? h->sets[i].dims[0] : 1));
    for (size_t i = 0; i < h->count; i++) {
        const h5_set *set = &h->sets[h->columns[i].set];
        bags_value *values =
            (bags_value *)bags_source_alloc(s, set->rows, sizeof *values);
        if (!values)
            return BAGS_ERROR_MEMORY;
        for (size_t row = 0; row < set->rows; row++)
            FORMAT_TRY(h5_value(s, set, &h->columns[i], row, &values[row]));
        s->entries[i].values = values;
        s->entries[i].count = set->rows;
    }
    return BAGS_OK;
}

static bags_code h5_read_source(bags_source *s, uint64_t index) {
    h5_state *h = (h5_state *)s->state;
    if (s->ended)
        return BAGS_OK;
    if (!h->episodes)
        return h5_read_columns(s, index);
    const char *name = h->names.names[index];
    s->values[h->count] = bags_utf8(name);
    FORMAT_TRY(h5_open_episode(s, name));
    return h5_read_columns(s, 0);
}

/* libhdf5 prints its errors unless called between H5E_BEGIN_TRY and H5E_END_TRY. */
static bags_code h5_open(bags_source *s) {
    bags_code code;
    H5E_BEGIN_TRY
    code = h5_open_source(s);
    H5E_END_TRY
    return code;
}

static bags_code h5_read(bags_source *s, uint64_t index) {
    bags_code code;
    H5E_BEGIN_TRY
    code = h5_read_source(s, index);
    H5E_END_TRY
    return code;
}

static void h5_close(bags_source *s) {
    h5_state *h = (h5_state *)s->state;
    H5E_BEGIN_TRY
    h5_drop_sets(h);
    h5_done(h->group);
    h5_done(h->file);
    H5E_END_TRY
}

const bags_importer bags_import_hdf5 = {
    "hdf5", bags_import_is_hdf5, sizeof(h5_state), h5_open, h5_read, h5_close};
