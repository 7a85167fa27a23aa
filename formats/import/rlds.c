/*
 * rlds.c - imports datasets that TensorFlow Datasets wrote as TFRecords, such as the
 * episodes of RLDS, using json-c and zlib (Debian: libjson-c-dev zlib1g-dev).
 *
 * A source is a directory with features.json, dataset_info.json and the files that the
 * latter names, or DIR/SPLIT for one split. Each record is a datapoint. In a record,
 * arrays are flat lists; features.json has their shapes and dtypes.
 *
 *     feature            field
 *     Tensor, Scalar     i64, u64, or array(DTYPE,SHAPE); also if encoded as bytes or zlib
 *     ClassLabel         i64;  BoundingBox, Audio: like Tensor
 *     Text               utf8, or bytes if not all are UTF-8;  Tensor of text: also jpeg...
 *     Image              jpeg or png, if all are; otherwise bytes; as stored
 *     Tensor whose shape varies in several dimensions: array
 *     Dataset, Sequence  items of a sequence: "steps/action": array(float32,7)[]
 *     Sequence in such   arrays of any length: array(DTYPE,-1,SHAPE)[]
 *     FeaturesDict       the names joined by /
 *
 * features.json, dataset_info.json and the files NAME.labels.txt are the metadata.
 *
 * If there are several splits, the field `split` has the name of each datapoint's.
 *
 * A first pass over all records finds the types of images and text, and checks the
 * checksums, the number of records in each file, and the number of values.
 */
#include "detect.h"
#include "json.h"
#include "tfrecord.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#define RL_JSON ((uint64_t)64 << 20)   /* maximum bytes of a JSON file */
#define RL_VALUES ((uint64_t)1 << 30)  /* maximum bytes of a feature per datapoint */
#define RL_LABELS ".labels.txt"        /* ending of files of names of classes */
#define RL_DEPTH 32                    /* maximum depth of features */
#define RL_METADATA ((size_t)16 << 20) /* maximum bytes of info.json */
#define RL_SHARDS ((uint64_t)1 << 20)  /* maximum number of files */
#define RL_RATIO ((uint64_t)1032)      /* zlib expands a byte to at most this many */
#define RL_ANY UINT64_MAX              /* a dimension or length of any size */

enum { RL_PLAIN, RL_RAW, RL_ZLIB };              /* encodings of a tensor */
enum { RL_NUMBER, RL_TEXT, RL_IMAGE, RL_BYTES }; /* content of a feature */

/* A list in the records: the values of a feature, or the shapes of its tensors, or the
 * lengths of its inner sequences. */
typedef struct rl_list {
    const char *name;
    struct rl_feature *feature;
    int role;          /* 0: values, 1: shapes, 2: lengths */
    uint64_t last;     /* the last record that has it, from 1 */
    tf_feature stored; /* in this record */
} rl_list;

/* A feature that is a field. */
typedef struct rl_feature {
    const char *name;
    int content, encoding;
    bags_dtype dtype;
    size_t dims;
    uint64_t shape[BAGS_MAX_DIMS]; /* of an item; RL_ANY: any */
    size_t unknown;                /* number of dimensions that are RL_ANY */
    size_t levels;                 /* number of sequences around it: 0 to 2 */
    uint64_t lengths[2];           /* their lengths */
    struct rl_feature *group;      /* the first feature in the same sequence, or NULL */
    uint64_t count;                /* of the group's first feature: number of items */
    uint64_t counted;              /* in this record, from 1 */
    rl_list *parts[3];             /* by role; NULL: none */
    bags_import_column found;      /* the bytes seen in the first pass */
    bool not_utf8;
    const char *stated; /* the type of images by features.json, or NULL */
} rl_feature;

/* The files of a split are those from `start` in s->paths. */
typedef struct rl_split {
    const char *name;
    uint64_t start;
} rl_split;

typedef struct rl_state {
    tf_reader reader;             /* the first member */
    const char *directory, *only; /* only: the split that the path names, or NULL */
    rl_feature **features;
    size_t feature_count;
    rl_list **lists; /* sorted by name */
    size_t list_count;
    rl_split *splits;
    size_t split_count;
    uint64_t *lengths; /* of each file */
    bags_buffer *inflated;
    json_object *features_json, *info_json, *labels; /* labels: names of classes */
    bool has_split;                                  /* the last field is the split */
} rl_state;

/* ---- features.json ---- */

/* The features and sequences around a feature. */
typedef struct rl_place {
    const char *name;
    size_t levels;
    uint64_t lengths[2];
    rl_feature **group; /* where the first feature of the outer sequence is noted */
    int depth;
} rl_place;

static bags_code rl_refuse(
    bags_source *s, const char *feature, const char *what, const char *which) {
    return bags_source_fail(s, BAGS_ERROR_TYPE,
        "features.json: feature \"%.200s\": %s not supported (%.200s)", feature, what,
        which);
}

/* Get a number that protocol buffers write as text: "7", but also 7. RL_ANY if it is
 * negative or missing; false if it is invalid. */
static bool rl_number(json_object *json, uint64_t *out) {
    const char *text = json ? json_object_get_string(json) : "-1";
    size_t digits = strspn(text, "0123456789");
    *out = RL_ANY;
    if (strcmp(text, "-1") == 0)
        return true;
    *out = strtoull(text, NULL, 10);
    return digits > 0 && digits < 19 && text[digits] == 0;
}

/* Parse {"dimensions": ["7", "-1"]}. Dimensions of 0 are refused, since the number of
 * items is then unknown. */
static bags_code rl_shape(bags_source *s, rl_feature *f, json_object *shape) {
    json_object *list = bags_import_member(shape, "dimensions", json_type_array);
    size_t count = list ? json_object_array_length(list) : 0;
    if (count > BAGS_MAX_DIMS - 1)
        return rl_refuse(s, f->name, "number of dimensions", "63 at most");
    for (size_t i = 0; i < count; i++) {
        json_object *size = json_object_array_get_idx(list, i);
        if (!rl_number(size, &f->shape[i]) || f->shape[i] == 0)
            return rl_refuse(
                s, f->name, "dimension", size ? json_object_get_string(size) : "null");
        f->unknown += f->shape[i] == RL_ANY;
    }
    f->dims = count;
    return BAGS_OK;
}

static bool rl_is_text(const char *dtype) {
    return !strcmp(dtype, "string") || !strcmp(dtype, "object") ||
           !strcmp(dtype, "str");
}

/* Parse a Tensor, or a feature that is stored like one. */
static bags_code rl_tensor(
    bags_source *s, rl_feature *f, json_object *about, const char *usual) {
    const char *dtype = bags_import_json_text(about, "dtype");
    const char *encoding = bags_import_json_text(about, "encoding");
    json_object *optional = bags_import_member(about, "optional", json_type_boolean);
    dtype = *dtype ? dtype : usual;
    if (optional && json_object_get_boolean(optional))
        return rl_refuse(s, f->name, "option", "optional");
    FORMAT_TRY(rl_shape(s, f, bags_import_member(about, "shape", json_type_object)));
    f->encoding = !strcmp(encoding, "zlib")    ? RL_ZLIB
                  : !strcmp(encoding, "bytes") ? RL_RAW
                                               : RL_PLAIN;
    if (f->encoding == RL_PLAIN && *encoding && strcmp(encoding, "none") != 0)
        return rl_refuse(s, f->name, "encoding", encoding);
    f->content = rl_is_text(dtype) ? RL_BYTES : RL_NUMBER;
    if (f->content == RL_BYTES)
        return f->encoding == RL_PLAIN
                   ? BAGS_OK
                   : rl_refuse(s, f->name, "encoding of text", encoding);
    f->dtype = strspn(dtype, "<>|=") ? BAGS_DTYPE_NONE
                                     : bags_dtype_parse(dtype, strlen(dtype), NULL);
    if (!f->dtype || f->dtype >= BAGS_DTYPE_COMPLEX64)
        return rl_refuse(s, f->name, "dtype", *dtype ? dtype : "none");
    return BAGS_OK;
}

/* Parse an Image. Images of floats are stored as PNG files of other pixels. */
static bags_code rl_image(bags_source *s, rl_feature *f, json_object *about) {
    const char *dtype = bags_import_json_text(about, "dtype");
    const char *format = bags_import_json_text(about, "encodingFormat");
    if (*dtype && strcmp(dtype, "uint8") && strcmp(dtype, "uint16") &&
        strcmp(dtype, "bool"))
        return rl_refuse(s, f->name, "dtype of images", dtype);
    if (*format && strcmp(format, "jpeg") && strcmp(format, "png"))
        return rl_refuse(s, f->name, "encodingFormat", format);
    f->content = RL_IMAGE;
    f->stated = !*format ? NULL : *format == 'j' ? "jpeg" : "png";
    return BAGS_OK;
}

/* Add a list of the records. */
static bags_code rl_add_list(
    bags_source *s, rl_feature *f, int role, const char *ending) {
    rl_state *r = (rl_state *)s->state;
    rl_list *list = (rl_list *)bags_source_alloc(s, 1, sizeof *list);
    r->lists = (rl_list **)bags_source_grow(s, r->lists, r->list_count, sizeof list);
    if (!list || !r->lists)
        return BAGS_ERROR_MEMORY;
    list->name = bags_source_format(s, "%s%s", f->name, ending);
    list->feature = f;
    list->role = role;
    f->parts[role] = list;
    r->lists[r->list_count++] = list;
    return list->name ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Add a feature whose content is known, and the lists that contain it. */
static bags_code rl_add(bags_source *s, rl_feature *f, const rl_place *place) {
    rl_state *r = (rl_state *)s->state;
    bool numbers = f->content == RL_NUMBER;
    bool plain = numbers && f->encoding == RL_PLAIN;
    f->levels = place->levels;
    memcpy(f->lengths, place->lengths, sizeof f->lengths);
    if (f->levels > 1 && (!plain || f->unknown > 0))
        return rl_refuse(s, f->name, "a sequence in a sequence of",
            numbers ? "encoded tensors, or of tensors of any shape" : "bytes");
    if (plain && f->unknown > 0 &&
        (f->levels > 0 || f->unknown > 1 || f->shape[0] != RL_ANY))
        return rl_refuse(s, f->name, "shape",
            "unknown dimensions, except the first outside of sequences, need an "
            "encoding");
    if (!numbers && f->dims > 0 && (f->levels > 0 || f->dims > 1))
        return rl_refuse(s, f->name, "an array of text", "in a sequence, or 2-D");
    if (f->levels > 0) {
        if (!*place->group)
            *place->group = f;
        f->group = *place->group;
    }
    r->features =
        (rl_feature **)bags_source_grow(s, r->features, r->feature_count, sizeof f);
    if (!r->features)
        return BAGS_ERROR_MEMORY;
    r->features[r->feature_count++] = f;
    bool shaped = f->unknown > 1;
    FORMAT_TRY(rl_add_list(s, f, 0,
        f->levels > 1 ? "/ragged_flat_values"
        : shaped      ? "/value"
                      : ""));
    if (shaped)
        FORMAT_TRY(rl_add_list(s, f, 1, "/shape"));
    return f->levels > 1 ? rl_add_list(s, f, 2, "/ragged_row_lengths_0") : BAGS_OK;
}

static bags_code rl_parse(bags_source *s, json_object *about, const rl_place *place);

/* Parse the features of a FeaturesDict. */
static bags_code rl_dictionary(
    bags_source *s, json_object *features, const rl_place *place) {
    json_object_iter at;
    json_object_object_foreachC(features, at) {
        rl_place inside = *place;
        inside.name = bags_source_format(
            s, "%s%s%s", place->name, *place->name ? "/" : "", at.key);
        if (!inside.name)
            return BAGS_ERROR_MEMORY;
        FORMAT_TRY(rl_parse(s, at.val, &inside));
    }
    return BAGS_OK;
}

/* Note one more sequence around features. */
static bags_code rl_enter(bags_source *s, rl_place *place, json_object *length) {
    uint64_t count;
    if (place->levels == 2)
        return rl_refuse(s, place->name, "depth of sequences", "2 at most");
    if (!rl_number(length, &count))
        return rl_refuse(s, place->name, "length", json_object_get_string(length));
    place->lengths[place->levels++] = count == 0 ? RL_ANY : count;
    return BAGS_OK;
}

/* Parse a feature, and those in it. The kind of its content decides. */
static bags_code rl_parse(bags_source *s, json_object *about, const rl_place *place) {
    static const char *const tensors[][2] = {
        {"tensor", ""}, {"boundingBox", "float32"}, {"audio", "int64"}};
    rl_place inside = *place;
    rl_feature *outer = NULL;
    if (++inside.depth > RL_DEPTH)
        return rl_refuse(s, place->name, "depth", "32 at most");
    if (inside.levels == 0)
        inside.group = &outer;
    json_object *content = bags_import_member(about, "featuresDict", json_type_object);
    if (content) {
        content = bags_import_member(content, "features", json_type_object);
        return content ? rl_dictionary(s, content, &inside) : BAGS_OK;
    }
    content = bags_import_member(about, "sequence", json_type_object);
    if (content) {
        json_object *length = NULL;
        json_object_object_get_ex(content, "length", &length);
        FORMAT_TRY(rl_enter(s, &inside, length));
        return rl_parse(
            s, bags_import_member(content, "feature", json_type_object), &inside);
    }
    rl_feature *f = (rl_feature *)bags_source_alloc(s, 1, sizeof *f);
    if (!f)
        return BAGS_ERROR_MEMORY;
    f->name = *place->name ? place->name : "value";
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        content = bags_import_member(about, tensors[i][0], json_type_object);
        if (!content)
            continue;
        if (i == 2 && (bags_import_member(content, "lazyDecode", json_type_boolean)))
            return rl_refuse(s, f->name, "option", "lazyDecode");
        FORMAT_TRY(rl_tensor(s, f, content, tensors[i][1]));
        if (i == 1 && f->dims == 0) {
            f->shape[0] = 4;
            f->dims = 1;
        }
        return rl_add(s, f, &inside);
    }
    if ((content = bags_import_member(about, "image", json_type_object))) {
        FORMAT_TRY(rl_image(s, f, content));
        return rl_add(s, f, &inside);
    }
    if ((content = bags_import_member(about, "video", json_type_object))) {
        json_object *shape = bags_import_member(content, "shape", json_type_object);
        json_object *list = bags_import_member(shape, "dimensions", json_type_array);
        FORMAT_TRY(rl_enter(s, &inside,
            list && json_object_array_length(list) ? json_object_array_get_idx(list, 0)
                                                   : NULL));
        FORMAT_TRY(rl_image(s, f, content));
        return rl_add(s, f, &inside);
    }
    if (bags_import_member(about, "text", json_type_object)) {
        f->content = RL_TEXT;
        return rl_add(s, f, &inside);
    }
    if (bags_import_member(about, "classLabel", json_type_object)) {
        f->dtype = BAGS_DTYPE_INT64;
        return rl_add(s, f, &inside);
    }
    const char *name = bags_import_json_text(about, "pythonClassName");
    return rl_refuse(s, f->name, "feature", *name ? name : "no pythonClassName");
}

static int rl_compare(const void *left, const void *right) {
    return strcmp(
        (*(const rl_list *const *)left)->name, (*(const rl_list *const *)right)->name);
}

static bags_code rl_features(bags_source *s) {
    rl_state *r = (rl_state *)s->state;
    rl_place place = {"", 0, {RL_ANY, RL_ANY}, NULL, 0};
    const char *path = bags_source_format(s, "%s/features.json", r->directory);
    bags_view text = {NULL, 0};
    FORMAT_TRY(path ? bags_source_load(s, path, RL_JSON, &text) : BAGS_ERROR_MEMORY);
    FORMAT_TRY(bags_source_parse_json(s, path, text, &r->features_json));
    FORMAT_TRY(rl_parse(s, r->features_json, &place));
    if (r->list_count == 0)
        return bags_source_fail(s, BAGS_ERROR_MISSING, "features.json: no feature");
    qsort(r->lists, r->list_count, sizeof *r->lists, rl_compare);
    for (size_t i = 1; i < r->list_count; i++)
        if (strcmp(r->lists[i - 1]->name, r->lists[i]->name) == 0)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "features.json: two features are stored as \"%.200s\"",
                r->lists[i]->name);
    return BAGS_OK;
}

/* ---- dataset_info.json ---- */

/* The name of a file of a split, by its template. NULL if out of memory or, with an
 * error, if the template is invalid. */
static const char *rl_file_name(bags_source *s, const char *pattern,
    const char *dataset, const char *split, uint64_t index, uint64_t count) {
    char numbers[64];
    const char *name = "";
    snprintf(numbers, sizeof numbers, "%05" PRIu64 "-of-%05" PRIu64, index, count);
    const char *const words[][2] = {{"{DATASET}", dataset}, {"{SPLIT}", split},
        {"{FILEFORMAT}", "tfrecord"}, {"{SHARD_X_OF_Y}", numbers},
        {"{SHARD_INDEX}", NULL}, {"{NUM_SHARDS}", NULL}};
    for (const char *at = pattern; name && *at;) {
        size_t i = 0, plain = strcspn(at, "{");
        if (plain > 0) {
            name = bags_source_format(s, "%s%.*s", name, (int)plain, at);
            at += plain;
            continue;
        }
        while (i < 6 && strncmp(at, words[i][0], strlen(words[i][0])) != 0)
            i++;
        if (i == 6) {
            bags_source_fail(s, BAGS_ERROR_TYPE,
                "dataset_info.json: filepathTemplate not supported (%.200s)", pattern);
            return NULL;
        }
        at += strlen(words[i][0]);
        name =
            i < 4 ? bags_source_format(s, "%s%s", name, words[i][1])
                  : bags_source_format(s, "%s%05" PRIu64, name, i == 4 ? index : count);
    }
    if (name && (strchr(name, '/') || strchr(name, '\\') || *name == '.')) {
        bags_source_fail(s, BAGS_ERROR_TYPE,
            "dataset_info.json: not the name of a file in the directory (%.200s)",
            name);
        return NULL;
    }
    return name;
}

/* Add a file of a split; its name may have .gz added. */
static bags_code rl_add_file(bags_source *s, const char *name, uint64_t records,
    const char *split, uint64_t index) {
    rl_state *r = (rl_state *)s->state;
    const char *ending = "";
    size_t count = s->path_count;
    if (bags_import_kind(r->directory, name) != BAGS_PATH_FILE) {
        const char *zipped = bags_source_format(s, "%s.gz", name);
        if (!zipped || bags_import_kind(r->directory, zipped) != BAGS_PATH_FILE)
            return bags_source_fail(s, BAGS_ERROR_MISSING,
                "split \"%.100s\": file %" PRIu64 " is missing (%.200s)", split, index,
                name);
        ending = ".gz";
    }
    s->paths = (char **)bags_source_grow(s, s->paths, count, sizeof *s->paths);
    r->lengths = (uint64_t *)bags_source_grow(s, r->lengths, count, sizeof *r->lengths);
    if (!s->paths || !r->lengths)
        return BAGS_ERROR_MEMORY;
    r->lengths[count] = records;
    s->paths[count] = bags_source_format(s, "%s/%s%s", r->directory, name, ending);
    s->path_count += s->paths[count] != NULL;
    return s->paths[count] ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Parse a split, and find its files. */
static bags_code rl_split_files(
    bags_source *s, json_object *about, json_object *split, const char *name) {
    rl_state *r = (rl_state *)s->state;
    json_object *list = bags_import_member(split, "shardLengths", json_type_array);
    const char *pattern = bags_import_json_text(split, "filepathTemplate");
    const char *dataset = bags_import_json_text(about, "name");
    uint64_t count = list ? json_object_array_length(list) : 0;
    if (count == 0 || count > RL_SHARDS)
        return bags_source_fail(s, BAGS_ERROR_MISSING,
            "dataset_info.json: split \"%.100s\": %s", name,
            count ? "too many shardLengths" : "no shardLengths");
    r->splits =
        (rl_split *)bags_source_grow(s, r->splits, r->split_count, sizeof *r->splits);
    if (!r->splits)
        return BAGS_ERROR_MEMORY;
    r->splits[r->split_count].name = bags_source_text(s, name, strlen(name));
    r->splits[r->split_count++].start = s->path_count;
    for (uint64_t i = 0; i < count; i++) {
        json_object *length = json_object_array_get_idx(list, (size_t)i);
        uint64_t records;
        if (!length || !rl_number(length, &records) || records == RL_ANY)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "dataset_info.json: split \"%.100s\": invalid shardLengths", name);
        const char *file = rl_file_name(s,
            *pattern ? pattern : "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            dataset, name, i, count);
        if (!file)
            return s->err->code;
        FORMAT_TRY(rl_add_file(s, file, records, name, i));
    }
    return BAGS_OK;
}

/* Find the splits and their files. If the path names a split, skip the others. */
static bags_code rl_splits(bags_source *s, json_object *about) {
    rl_state *r = (rl_state *)s->state;
    json_object *list = bags_import_member(about, "splits", json_type_array);
    const char *format = bags_import_json_text(about, "fileFormat");
    const char *names = "";
    if (*format && strcmp(format, "tfrecord") != 0)
        return bags_source_fail(s, BAGS_ERROR_TYPE,
            "dataset_info.json: fileFormat not supported (%.100s)", format);
    for (size_t i = 0; list && i < json_object_array_length(list); i++) {
        json_object *split = json_object_array_get_idx(list, i);
        const char *name = bags_import_json_text(split, "name");
        names = bags_source_format(s, "%s%s%s", names, *names ? ", " : "", name);
        if (!names)
            return BAGS_ERROR_MEMORY;
        for (size_t k = 0; k < r->split_count; k++)
            if (strcmp(r->splits[k].name, name) == 0)
                return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                    "dataset_info.json: duplicate split \"%.100s\"", name);
        if (!r->only || strcmp(r->only, name) == 0)
            FORMAT_TRY(rl_split_files(s, about, split, name));
    }
    if (r->split_count == 0)
        return bags_source_fail(s, BAGS_ERROR_MISSING,
            "dataset_info.json: no split%s%.100s (%s%.400s)", r->only ? " " : "",
            r->only ? r->only : "", *names ? "it has " : "splits is empty", names);
    r->has_split = r->split_count > 1;
    return BAGS_OK;
}

/* Read the names of a ClassLabel, one per line. */
static int rl_add_labels(bags_source *s, const char *name) {
    rl_state *r = (rl_state *)s->state;
    const char *path = bags_source_format(s, "%s/%s", r->directory, name);
    const char *key = bags_source_text(s, name, strlen(name) - strlen(RL_LABELS));
    bags_view text = {NULL, 0};
    if (!path || !key || bags_source_load(s, path, RL_METADATA, &text))
        return path && key ? EIO : ENOMEM;
    const char *at = (const char *)text.data, *end = at + text.size;
    if (!bags_utf8_valid(at, text.size, NULL)) {
        bags_source_leave_out(s, "other file", 1, "%s", name);
        return 0;
    }
    json_object *list = json_object_new_array();
    if (!r->labels)
        r->labels = json_object_new_object();
    if (!list || !r->labels) {
        json_object_put(list);
        return ENOMEM;
    }
    for (const char *next; at < end; at = next + 1) {
        next = (const char *)memchr(at, '\n', (size_t)(end - at));
        next = next ? next : end;
        json_object_array_add(list, json_object_new_string_len(at, (int)(next - at)));
    }
    json_object_object_add(r->labels, key, list);
    return 0;
}

/* Report a file that is not one of the source. */
static int rl_other_file(void *user, const char *name) {
    bags_source *s = (bags_source *)user;
    if (name[0] != '.' && bags_import_ends(name, RL_LABELS))
        return rl_add_labels(s, name);
    bool known = name[0] == '.' || !strcmp(name, "features.json") ||
                 !strcmp(name, "dataset_info.json");
    for (size_t i = 0; !known && i < s->path_count; i++)
        known = strcmp(bags_import_base(s->paths[i]), name) == 0;
    if (!known)
        bags_source_leave_out(s, "other file", 1, "%s", name);
    return 0;
}

static bags_code rl_files(bags_source *s) {
    rl_state *r = (rl_state *)s->state;
    const bags_io *io = bags_io_local();
    const char *path = bags_source_format(s, "%s/dataset_info.json", r->directory);
    bags_view text = {NULL, 0};
    FORMAT_TRY(path ? bags_source_load(s, path, RL_JSON, &text) : BAGS_ERROR_MEMORY);
    FORMAT_TRY(bags_source_parse_json(s, path, text, &r->info_json));
    FORMAT_TRY(rl_splits(s, r->info_json));
    r->reader.lengths = r->lengths;
    int error = io->list(io->user, r->directory, rl_other_file, s);
    return error ? bags_fail_io(NULL, error, r->directory, "list", s->err) : BAGS_OK;
}

/* {"rlds": {"features": features.json, "info": dataset_info.json, "labels": {NAME:
 * [...]}}} */
static bags_code rl_set_metadata(bags_source *s) {
    rl_state *r = (rl_state *)s->state;
    json_object *all = json_object_new_object(), *of = json_object_new_object();
    json_object_object_add(of, "features", json_object_get(r->features_json));
    json_object_object_add(of, "info", json_object_get(r->info_json));
    if (r->labels)
        json_object_object_add(of, "labels", json_object_get(r->labels));
    json_object_object_add(all, "rlds", of);
    const char *text = json_object_to_json_string_ext(
        all, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    size_t size = text ? strlen(text) : 0;
    if (size > RL_METADATA)
        bags_source_leave_out(s, "file", 2, "dataset_info.json, features.json");
    else if (text)
        s->metadata = bags_source_text(s, text, size);
    json_object_put(all);
    return text && (s->metadata || size > RL_METADATA) ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* ---- records ---- */

static bags_code rl_fail(bags_source *s, const rl_feature *f, const char *format, ...)
    BAGI_PRINTF(3, 4);

static bags_code rl_fail(bags_source *s, const rl_feature *f, const char *format, ...) {
    const tf_reader *t = (const tf_reader *)s->state;
    va_list arguments;
    va_start(arguments, format);
    bags_vfail(s->err, BAGS_ERROR_CORRUPT, format, arguments);
    va_end(arguments);
    return bags_prefix(s->err, BAGS_ERROR_CORRUPT,
        "%s: record %" PRIu64 " at byte %" PRIu64 ": feature \"%.100s\": ", s->where,
        t->next - t->before - 1, t->start, f->name);
}

/* Find a list by its name in a record. */
static rl_list *rl_find(const rl_state *r, bags_view name) {
    size_t low = 0, high = r->list_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const char *other = r->lists[middle]->name;
        size_t size = strlen(other), both = size < name.size ? size : name.size;
        int order = both ? memcmp(other, name.data, both) : 0;
        if (order == 0 && size == name.size)
            return r->lists[middle];
        if (order < 0 || (order == 0 && size < name.size))
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* Note a feature of a record. Features that features.json lacks are counted. */
static bags_code rl_visit(bags_source *s, const tf_feature *stored) {
    rl_state *r = (rl_state *)s->state;
    rl_list *list = rl_find(r, stored->name);
    if (!list) {
        bool added = s->opened || bags_source_column(s, stored->name.data,
                                      stored->name.size, s->column_count < 4096);
        return added || s->column_count == 4096 ? BAGS_OK : BAGS_ERROR_MEMORY;
    }
    if (list->last == r->reader.next)
        return tf_fail_feature(s, stored, "duplicate");
    list->last = r->reader.next;
    list->stored = *stored;
    return BAGS_OK;
}

/* Get a list of this record and its number of values; an absent one is empty. */
static bags_code rl_list_of(bags_source *s, const rl_feature *f, int role,
    const tf_feature **out, size_t *count) {
    static const tf_feature none = {{NULL, 0}, {NULL, 0}, 0};
    static const char *const kinds[] = {"", "bytes", "float", "int64"};
    const rl_list *list = f->parts[role];
    unsigned kind = role > 0                                             ? TF_INT64
                    : f->content != RL_NUMBER || f->encoding != RL_PLAIN ? TF_BYTES
                    : f->dtype >= BAGS_DTYPE_FLOAT16                     ? TF_FLOAT
                                                                         : TF_INT64;
    *count = 0;
    *out = &none;
    if (list->last != ((rl_state *)s->state)->reader.next)
        return f->levels > 0 || f->unknown > 0 ? BAGS_OK : rl_fail(s, f, "missing");
    *out = &list->stored;
    if (list->stored.kind != kind)
        return rl_fail(
            s, f, "a list of %s (expected %s)", kinds[list->stored.kind], kinds[kind]);
    return tf_values(&list->stored, count, NULL) ? BAGS_OK
                                                 : rl_fail(s, f, "invalid list");
}

/* The elements of an item, with 1 for dimensions of any size. */
static bool rl_elements(const rl_feature *f, uint64_t *out) {
    *out = 1;
    for (size_t i = 0; i < f->dims; i++) {
        uint64_t size = f->shape[i] == RL_ANY ? 1 : f->shape[i];
        if (*out > RL_VALUES / size)
            return false;
        *out *= size;
    }
    return true;
}

/* Check the number of items in the outer sequence: all its features have the same. */
static bags_code rl_count_items(bags_source *s, rl_feature *f, uint64_t count) {
    rl_feature *group = f->group;
    uint64_t record = ((rl_state *)s->state)->reader.next;
    if (!group)
        return BAGS_OK;
    if (f->lengths[0] != RL_ANY && f->lengths[0] != count)
        return rl_fail(
            s, f, "%" PRIu64 " items (expected %" PRIu64 ")", count, f->lengths[0]);
    if (group->counted != record) {
        group->counted = record;
        group->count = count;
    }
    if (group->count != count)
        return rl_fail(s, f, "%" PRIu64 " items, but \"%.100s\" has %" PRIu64, count,
            group->name, group->count);
    return BAGS_OK;
}

/* Fail if the number of values is not a multiple. */
static bags_code rl_divide(
    bags_source *s, const rl_feature *f, uint64_t count, uint64_t per, uint64_t *out) {
    *out = count / per;
    if (count % per)
        return rl_fail(
            s, f, "%" PRIu64 " values are not items of %" PRIu64, count, per);
    return BAGS_OK;
}

/* ---- values ---- */

/* Convert a list of integers to elements of the dtype, in native byte order. */
static bags_code rl_integers(bags_source *s, const rl_feature *f, const uint64_t *from,
    size_t count, unsigned char *to) {
    size_t size = bags_dtype_size(f->dtype);
    bool is_signed = f->dtype >= BAGS_DTYPE_INT8;
    uint64_t most = f->dtype == BAGS_DTYPE_BOOL
                        ? 1
                        : UINT64_MAX >> (64 - 8 * size + (is_signed ? 1 : 0));
    for (size_t i = 0; i < count; i++, to += size) {
        bool negative = is_signed && (int64_t)from[i] < 0;
        if ((negative ? ~from[i] : from[i]) > most)
            return rl_fail(s, f, "value %" PRIu64 ": out of range for %s (%" PRId64 ")",
                (uint64_t)i, bags_dtype_name(f->dtype), (int64_t)from[i]);
        bags_store_bytes(to, size, !bags_little_endian(), from[i]);
    }
    return BAGS_OK;
}

/* Convert a list of float32 to elements of the dtype, in native byte order. */
static bags_code rl_floats(bags_source *s, const rl_feature *f,
    const unsigned char *from, size_t count, unsigned char *to) {
    size_t size = bags_dtype_size(f->dtype);
    for (size_t i = 0; i < count; i++, to += size) {
        uint64_t bits = bags_load_bytes(from + 4 * i, 4, false);
        double number = format_real(bits, 4);
        bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
        bool fits = size == 4 || format_real_bits(number, size, &bits);
        double held = format_real(bits, size);
        if (!fits || (!is_nan && (held < number || held > number)))
            return rl_fail(s, f, "value %" PRIu64 ": not a %s (%g)", (uint64_t)i,
                bags_dtype_name(f->dtype), number);
        bags_store_bytes(to, size, !bags_little_endian(), bits);
    }
    return BAGS_OK;
}

/* Make the value of an item from its elements. */
static bags_value rl_item(const rl_feature *f, size_t dims, const uint64_t *shape,
    const unsigned char *data) {
    unsigned char bytes[8];
    size_t size = bags_dtype_size(f->dtype);
    if (dims > 0 || !bags_import_is_integer(f->dtype))
        return bags_array(f->dtype, dims, shape, data);
    bags_store_bytes(
        bytes, size, false, bags_load_bytes(data, size, !bags_little_endian()));
    return bags_import_integer(f->dtype, bytes);
}

/* Set the entry to `count` items of plain numbers; the shape of item i has
 * lengths[i] first, if lengths is not NULL. */
static bags_code rl_plain_items(bags_source *s, const rl_feature *f,
    const tf_feature *list, size_t values, uint64_t per, size_t count,
    const uint64_t *lengths, bags_entry *entry) {
    size_t size = bags_dtype_size(f->dtype);
    size_t dims = f->dims + (lengths && f->levels > 1 ? 1 : 0);
    bool floats = f->dtype >= BAGS_DTYPE_FLOAT16;
    unsigned char *raw = (unsigned char *)bags_source_alloc(s, values, 8);
    unsigned char *data = (unsigned char *)bags_source_alloc(s, values, size);
    bags_value *items = (bags_value *)bags_source_alloc(s, count, sizeof *items);
    uint64_t *shapes =
        (uint64_t *)bags_source_alloc(s, count, (dims + 1) * sizeof *shapes);
    size_t total = values;
    if (!raw || !data || !items || !shapes)
        return BAGS_ERROR_MEMORY;
    tf_values(list, &total, raw);
    FORMAT_TRY(floats ? rl_floats(s, f, raw, values, data)
                      : rl_integers(s, f, (const uint64_t *)(void *)raw, values, data));
    for (size_t i = 0; i < count; i++, shapes += dims) {
        size_t first = dims - f->dims;
        memcpy(shapes + first, f->shape, f->dims * sizeof *shapes);
        if (lengths)
            shapes[0] = lengths[i];
        items[i] = rl_item(f, dims, shapes, data);
        data += size * (size_t)(lengths ? lengths[i] * per : per);
    }
    entry->values = items;
    entry->count = count;
    return BAGS_OK;
}

/* Take plain numbers of a record. */
static bags_code rl_plain(bags_source *s, rl_feature *f, bags_entry *entry) {
    const tf_feature *list, *ragged = NULL;
    size_t values, count = 1, rows = 0;
    uint64_t per, items = 1, first;
    FORMAT_TRY(rl_list_of(s, f, 0, &list, &values));
    if (!rl_elements(f, &per) || values > RL_VALUES / 8)
        return rl_fail(s, f, "too large");
    if (f->levels < 2) {
        FORMAT_TRY(rl_divide(s, f, values, per, &first));
        if (f->levels == 1)
            items = first;
        else if (f->unknown == 0 && first != 1)
            return rl_fail(s, f, "%" PRIu64 " values (expected %" PRIu64 ")",
                (uint64_t)values, per);
        FORMAT_TRY(rl_count_items(s, f, items));
        count = (size_t)items;
        return entry ? rl_plain_items(s, f, list, values, per, count,
                           f->unknown ? &first : NULL, entry)
                     : BAGS_OK;
    }
    FORMAT_TRY(rl_list_of(s, f, 2, &ragged, &rows));
    FORMAT_TRY(rl_count_items(s, f, rows));
    /* The lengths of all inner sequences must be all values. */
    FORMAT_TRY(bags_source_reserve(s, &((rl_state *)s->state)->inflated, 8 * rows));
    uint64_t *lengths = (uint64_t *)(void *)((rl_state *)s->state)->inflated->data;
    uint64_t sum = 0;
    tf_values(ragged, &rows, lengths);
    for (size_t i = 0; i < rows; i++) {
        if (lengths[i] > values ||
            (f->lengths[1] != RL_ANY && f->lengths[1] != lengths[i]))
            return rl_fail(s, f, "item %" PRIu64 ": invalid length (%" PRId64 ")",
                (uint64_t)i, (int64_t)lengths[i]);
        sum += lengths[i];
    }
    FORMAT_TRY(rl_divide(s, f, values, per, &items));
    if (sum != items)
        return rl_fail(s, f,
            "the lengths of its items are %" PRIu64 ", but it has %" PRIu64, sum,
            items);
    return entry ? rl_plain_items(s, f, list, values, per, rows, lengths, entry)
                 : BAGS_OK;
}

/* Decompress a tensor to source->scratch. `expected`: its size, or RL_ANY. */
static bags_code rl_inflate(
    bags_source *s, const rl_feature *f, uint64_t expected, bags_view *bytes) {
    rl_state *r = (rl_state *)s->state;
    uint64_t most =
        bytes->size < RL_VALUES / RL_RATIO ? bytes->size * RL_RATIO : RL_VALUES;
    z_stream zip;
    if (expected != RL_ANY && expected > most)
        return rl_fail(s, f, "not a tensor of %" PRIu64 " bytes", expected);
    size_t size = (size_t)(expected != RL_ANY ? expected : most);
    FORMAT_TRY(bags_source_reserve(s, &r->inflated, size));
    memset(&zip, 0, sizeof zip);
    zip.next_in = (unsigned char *)(uintptr_t)bytes->data;
    zip.avail_in = (uInt)bytes->size;
    zip.next_out = r->inflated->data;
    zip.avail_out = (uInt)size;
    if (inflateInit(&zip) != Z_OK)
        return bags_source_no_memory(s);
    int end = inflate(&zip, Z_FINISH);
    inflateEnd(&zip);
    if (end != Z_STREAM_END || zip.avail_in > 0 || bytes->size > UINT32_MAX)
        return rl_fail(s, f, "not a tensor compressed by zlib");
    bytes->size = size - zip.avail_out;
    bytes->data =
        (const unsigned char *)bags_source_text(s, r->inflated->data, bytes->size);
    return bytes->data ? BAGS_OK : BAGS_ERROR_MEMORY;
}

/* Take tensors that are encoded as bytes, little-endian. */
static bags_code rl_encoded(bags_source *s, rl_feature *f, bags_entry *entry) {
    const tf_feature *list, *shape_list = NULL;
    size_t count, numbers = 0, size = bags_dtype_size(f->dtype);
    uint64_t per;
    FORMAT_TRY(rl_list_of(s, f, 0, &list, &count));
    if (f->levels == 0 && count != 1)
        return rl_fail(s, f, "%" PRIu64 " values (expected 1)", (uint64_t)count);
    FORMAT_TRY(rl_count_items(s, f, count));
    if (!rl_elements(f, &per) || count > RL_VALUES / sizeof(bags_value))
        return rl_fail(s, f, "too large");
    if (f->parts[1])
        FORMAT_TRY(rl_list_of(s, f, 1, &shape_list, &numbers));
    if (f->parts[1] && numbers != count * f->dims)
        return rl_fail(s, f, "%" PRIu64 " numbers of shapes (expected %" PRIu64 ")",
            (uint64_t)numbers, (uint64_t)(count * f->dims));
    if (!entry)
        return BAGS_OK;
    bags_value *items = (bags_value *)bags_source_alloc(s, count, sizeof *items);
    uint64_t *shapes =
        (uint64_t *)bags_source_alloc(s, count * f->dims + 1, sizeof *shapes);
    if (!items || !shapes)
        return BAGS_ERROR_MEMORY;
    tf_values(list, &count, items);
    if (shape_list)
        tf_values(shape_list, &numbers, shapes);
    for (size_t i = 0; i < count; i++, shapes += f->dims) {
        bags_view bytes = {(const unsigned char *)items[i].data, items[i].size};
        uint64_t expected = f->unknown == 1 ? RL_ANY : size;
        for (size_t d = 0; d < f->dims; d++) {
            uint64_t stated = shape_list ? shapes[d] : f->shape[d];
            if (f->shape[d] != RL_ANY && stated != f->shape[d])
                return rl_fail(s, f, "item %" PRIu64 ": shape mismatch", (uint64_t)i);
            if (expected != RL_ANY && stated > 0 && expected > RL_VALUES / stated)
                return rl_fail(s, f, "item %" PRIu64 ": too large", (uint64_t)i);
            expected *= expected == RL_ANY ? 1 : stated;
            shapes[d] = stated;
        }
        if (f->encoding == RL_ZLIB)
            FORMAT_TRY(rl_inflate(s, f, expected, &bytes));
        if (expected == RL_ANY ? bytes.size % (per * size) != 0
                               : bytes.size != expected)
            return rl_fail(s, f, "item %" PRIu64 ": wrong size (%" PRIu64 " bytes)",
                (uint64_t)i, (uint64_t)bytes.size);
        for (size_t d = 0; d < f->dims && f->unknown == 1; d++)
            if (f->shape[d] == RL_ANY)
                shapes[d] = bytes.size / (per * size);
        unsigned char *native = (unsigned char *)bags_source_alloc(s, bytes.size, 1);
        if (!native)
            return BAGS_ERROR_MEMORY;
        bags_swap_bytes(native, bytes.data, bytes.size,
            bags_little_endian() ? 1 : bags_dtype_swap(f->dtype));
        items[i] = rl_item(f, f->dims, shapes, native);
    }
    entry->values = items;
    entry->count = count;
    return BAGS_OK;
}

/* Take text or images. */
static bags_code rl_bytes(bags_source *s, rl_feature *f, bags_entry *entry) {
    const tf_feature *list;
    size_t count;
    FORMAT_TRY(rl_list_of(s, f, 0, &list, &count));
    uint64_t expected = f->dims ? f->shape[0] : 1;
    if (f->levels == 0 && expected != RL_ANY && count != expected)
        return rl_fail(s, f, "%" PRIu64 " values (expected %" PRIu64 ")",
            (uint64_t)count, expected);
    FORMAT_TRY(rl_count_items(s, f, count));
    if (entry) {
        bags_value *items = (bags_value *)bags_source_alloc(s, count, sizeof *items);
        if (!items)
            return BAGS_ERROR_MEMORY;
        tf_values(list, &count, items);
        entry->values = items;
        entry->count = count;
        return BAGS_OK;
    }
    bags_view rest = list->list;
    for (wire_part part; rest.size > 0 && wire_split(&rest, &part);) {
        bags_import_guess(&f->found, part.bytes.data, part.bytes.size, true);
        f->not_utf8 =
            f->not_utf8 || !bags_utf8_valid(part.bytes.data, part.bytes.size, NULL);
    }
    return BAGS_OK;
}

/* Check a record or, if there are entries, take its values. */
static bags_code rl_record(bags_source *s, bags_view record, bags_entry *entries) {
    rl_state *r = (rl_state *)s->state;
    size_t found;
    FORMAT_TRY(tf_walk(s, record, rl_visit, &found));
    for (size_t i = 0; i < r->feature_count; i++) {
        rl_feature *f = r->features[i];
        bags_entry *entry = entries ? &entries[i] : NULL;
        FORMAT_TRY(f->content != RL_NUMBER   ? rl_bytes(s, f, entry)
                   : f->encoding == RL_PLAIN ? rl_plain(s, f, entry)
                                             : rl_encoded(s, f, entry));
    }
    return BAGS_OK;
}

/* ---- the source ---- */

/* The type of a feature's field, after the first pass. */
static const char *rl_type(bags_source *s, const rl_feature *f) {
    uint64_t shape[BAGS_MAX_DIMS] = {RL_ANY};
    size_t inner = f->levels > 1 ? 1 : 0;
    bool sequence = f->levels > 0 || (f->content != RL_NUMBER && f->dims > 0);
    const char *type = "bytes";
    if (f->content == RL_NUMBER && f->unknown > 1)
        return bags_source_format(s, "array%s", sequence ? "[]" : "");
    if (f->content == RL_NUMBER) {
        memcpy(shape + inner, f->shape, f->dims * sizeof *shape);
        return bags_source_number_type(s, f->dtype, f->dims + inner, shape, sequence);
    }
    if (f->content == RL_TEXT && !f->not_utf8)
        type = "utf8";
    else if (f->content == RL_IMAGE)
        type = f->found.magic                   ? f->found.magic
               : f->found.guessed || !f->stated ? "bytes"
                                                : f->stated;
    else if (f->content == RL_BYTES)
        type = bags_import_guessed(&f->found);
    return bags_source_format(s, "%s%s", type, sequence ? "[]" : "");
}

/* Set the directory and, if the path is DIR/SPLIT, the split. */
static bags_code rl_place_of(bags_source *s) {
    rl_state *r = (rl_state *)s->state;
    const char *base = bags_import_base(s->path);
    r->directory = s->path;
    if (bags_import_kind(s->path, NULL) != BAGS_PATH_NONE)
        return BAGS_OK;
    if (!bags_import_is_rlds(s->path))
        return bags_source_fail(
            s, BAGS_ERROR_MISSING, "cannot open: No such file or directory");
    r->only = base;
    r->directory = bags_source_text(s, s->path, (size_t)(base - s->path) - 1);
    return r->directory ? BAGS_OK : BAGS_ERROR_MEMORY;
}

static bags_code rl_open(bags_source *s) {
    rl_state *r = (rl_state *)s->state;
    bags_view record;
    FORMAT_TRY(rl_place_of(s));
    FORMAT_TRY(rl_features(s));
    FORMAT_TRY(rl_files(s));
    while (!s->ended) {
        FORMAT_TRY(tf_next(s, false, &record));
        if (!s->ended)
            FORMAT_TRY(rl_record(s, record, NULL));
    }
    s->length = r->reader.next;
    tf_rewind(s);
    for (size_t i = 0; i < r->list_count; i++)
        r->lists[i]->last = 0;
    for (size_t i = 0; i < r->feature_count; i++) {
        r->features[i]->counted = 0;
        bags_source_field(s, r->features[i]->name, rl_type(s, r->features[i]));
    }
    if (r->has_split)
        bags_source_field(s, "split", "utf8");
    for (size_t i = 0; i < s->column_count; i++)
        bags_source_leave_out(s, "unknown feature", 1, "%.*s", (int)s->columns[i]->size,
            s->columns[i]->name);
    return rl_set_metadata(s);
}

static bags_code rl_read(bags_source *s, uint64_t index) {
    rl_state *r = (rl_state *)s->state;
    bags_view record = {NULL, 0};
    for (s->ended = false; !s->ended && r->reader.next <= index;)
        FORMAT_TRY(tf_next(s, r->reader.next < index, &record));
    if (s->ended)
        return BAGS_OK;
    FORMAT_TRY(rl_record(s, record, s->entries));
    if (!r->has_split)
        return BAGS_OK;
    size_t i = r->split_count - 1;
    while (r->splits[i].start >= s->path_next)
        i--;
    s->values[r->feature_count] = bags_utf8(r->splits[i].name);
    return BAGS_OK;
}

static void rl_close(bags_source *s) {
    rl_state *r = (rl_state *)s->state;
    bags_import_stream_close(&r->reader.stream);
    json_object_put(r->features_json);
    json_object_put(r->info_json);
    json_object_put(r->labels);
}

const bags_importer bags_import_rlds = {
    "rlds", bags_import_is_rlds, sizeof(rl_state), rl_open, rl_read, rl_close};
