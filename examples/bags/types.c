/*
 * The table of types. It states how their values are shown, the file with the codec,
 * and the versions of the Python packages that read the type.
 */
#include "command.h"

#include "formats.h"
#include "import.h"
#include "values.h"

const python_version python_versions[PYTHON_VERSIONS + 1] = {
    {"bags-0.5", true, false},
    {"granular-0.16", true, false},
    {"granular-0.21", true, false},
    {"granular-0.22", false, true},
    {NULL, false, false},
};

#define NAMED(name)                                                                    \
    { name, name, name, name }

/* Rows with the same name are adjacent; type_find returns the first one. */
static const type_info types[] = {
    {"bytes", "bytes", "any bytes", NULL, NAMED("bytes"), NULL, TYPE_OTHER},
    {"utf8", "utf8", "text", NULL, NAMED("utf8"), "txt", TYPE_TEXT},
    {"int", "int",
        "a whole number from 0, in as few bytes as hold it; a zero byte "
        "follows "
        "if the top bit would be set (128 to 255, ...), since granular 0.17.1 "
        "and later reads a sign",
        NULL, NAMED("int"), "bin", TYPE_NUMBER},
    {"int", "int(N), int(N,big)", "a number from 0 to 256^N - 1 in N bytes", NULL,
        {"int*", "int", "int", "int"}, "bin", TYPE_NUMBER},
    {"u64", "u64", "a number from 0 to 2^64-1 in 8 bytes", NULL,
        {"int(8)", "int", "u64", "u64"}, "bin", TYPE_NUMBER},
    {"i64", "i64", "a number from -2^63 to 2^63-1 in 8 bytes", NULL,
        {NULL, NULL, "i64", "i64"}, "bin", TYPE_NUMBER},
    {"array", "array(DTYPE,D0,D1,...)",
        "an array of exactly this dtype and shape; the first dimension may be "
        "-1: any. DTYPE by itself means array(DTYPE): one number",
        NULL, {"array*", "array", "array", "array"}, "bin", TYPE_ARRAY},
    {"array", "array", "an array of any dtype and shape, stated by the blob", NULL,
        {NULL, "array", "array", "array"}, "msgpack", TYPE_ARRAY},
    {"npy", "npy", "an array of any dtype and shape, as a .npy file", "formats/numpy.c",
        {NULL, "array", "array", "array"}, "npy", TYPE_ARRAY},
    {"msgpack", "msgpack", "any JSON value", "formats/msgpack.c (msgpack-c)",
        NAMED("msgpack"), "msgpack", TYPE_MSGPACK},
    {"tree", "tree", "like msgpack, and may contain arrays",
        "formats/msgpack.c (msgpack-c)", {NULL, "tree", "tree", "tree"}, "msgpack",
        TYPE_MSGPACK},
    {"jpeg", "jpeg, jpeg(QUALITY)", "a JPEG image; QUALITY is 1 to 100",
        "formats/jpeg.c (libjpeg-turbo)", {"jpeg*", "jpg", "jpg", "jpg"}, "jpg",
        TYPE_IMAGE},
    {"jpg", "jpg, jpg(QUALITY)", "the same", "formats/jpeg.c (libjpeg-turbo)",
        {"jpeg*", "jpg", "jpg", "jpg"}, "jpg", TYPE_IMAGE},
    {"png", "png, png(LEVEL)", "a PNG image; LEVEL is 0 to 9", "formats/png.c (libpng)",
        {"png*", "png", "png", "png"}, "png", TYPE_IMAGE},
    {"webp", "webp, webp(LEVEL)", "a WebP image, without loss; LEVEL is 0 to 9",
        "formats/webp.c (libwebp)", {NULL, NULL, NULL, NULL}, "webp", TYPE_IMAGE},
    {"mp4", "mp4, mp4(FPS), mp4(FPS,CODEC)",
        "an MP4 video; CODEC: mpeg4, h264, hevc, vp9, av1", "formats/mp4.c (FFmpeg)",
        {"mp4*", "mp4", "mp4", "mp4"}, "mp4", TYPE_VIDEO},
    {"webm", "webm, webm(FPS), webm(FPS,CODEC)", "a WebM video; CODEC: vp9, av1",
        "formats/mp4.c (FFmpeg)", {NULL, "webm", "webm", "webm"}, "webm", TYPE_VIDEO},
    {"zstd", "zstd(TYPE), zstd(TYPE,ARGUMENTS)",
        "a compressed value of TYPE or TYPE(ARGUMENTS): zstd(utf8), "
        "zstd(array,float32,64)",
        "formats/zstd.c (zstd)", NAMED("TYPE"), "zst", TYPE_OTHER},
};

#define TYPES (sizeof types / sizeof *types)

/* A type is a name, optional arguments in parentheses, and [] for a sequence. */
static size_t name_size(const char *type) { return strcspn(type, "(["); }

const type_info *type_find(const char *type) {
    size_t size = name_size(type);
    for (size_t i = 0; i < TYPES; i++)
        if (strlen(types[i].name) == size && !memcmp(types[i].name, type, size))
            return &types[i];
    return NULL;
}

/* True if the type matches one of the forms of a row, with or without arguments. */
static bool has_form(const type_info *info, const char *type) {
    size_t size = name_size(type);
    return strlen(info->name) == size && !memcmp(info->name, type, size) &&
           (type[size] == '(' ? strchr(info->forms, '(') != NULL
                              : info->forms[size] != '(');
}

/* Also returns NULL for the placeholder forms in the table: their capital letters occur
 * in no real type name. */
char *type_inside(const char *type) {
    bags_type parsed, inside;
    if (bags_type_parse(type, &parsed, NULL) || !format_type_inside(&parsed, &inside))
        return NULL;
    return string_format(inside.count ? "%.*s(%.*s)%s" : "%.*s%.*s%s",
        (int)inside.name.size, (const char *)inside.name.data,
        (int)inside.arguments.size, (const char *)inside.arguments.data,
        parsed.sequence ? "[]" : "");
}

bool type_is_compressed(const char *type) {
    char *inside = type_inside(type);
    free(inside);
    return inside != NULL;
}

/* Keeps the arguments where the table has an asterisk, and keeps the [] of a
 * sequence. */
char *type_for_python(const char *type, size_t version) {
    char *inside = type_inside(type);
    if (inside) {
        type_class kind = type_kind(inside);
        /* Decoding and encoding an image again would change its pixels. */
        char *made = kind == TYPE_IMAGE || kind == TYPE_VIDEO
                         ? NULL
                         : type_for_python(inside, version);
        free(inside);
        return made;
    }
    size_t i = 0;
    const char *arguments = type + name_size(type);
    size_t size = strcspn(arguments, ")[") + (*arguments == '(');
    bool sequence = arguments[size] == '[';
    while (i < TYPES && !has_form(&types[i], type))
        i++;
    const char *name = i < TYPES ? types[i].python[version] : NULL;
    if (!name || (sequence && !python_versions[version].sequences))
        return NULL;
    bool keep = has_ending(name, "*");
    return string_format("%.*s%.*s%s", (int)strcspn(name, "*"), name,
        keep ? (int)size : 0, arguments, sequence ? "[]" : "");
}

/* A compressed value is not itself an image or video file. */
type_class type_kind(const char *type) {
    const type_info *info = type_find(type);
    char *inside = type_inside(type);
    type_class kind = inside ? type_kind(inside) : info ? info->kind : TYPE_OTHER;
    free(inside);
    return inside && (kind == TYPE_IMAGE || kind == TYPE_VIDEO) ? TYPE_OTHER : kind;
}

/* The first argument of array(DTYPE,...). npy has no such argument. */
bags_dtype type_dtype(const char *type) {
    bags_type parsed, inside;
    if (type_kind(type) != TYPE_ARRAY || bags_type_parse(type, &parsed, NULL))
        return BAGS_DTYPE_NONE;
    bool has_inside = format_type_inside(&parsed, &inside);
    bags_view name = bags_type_argument(has_inside ? &inside : &parsed, 0);
    return bags_dtype_parse((const char *)name.data, name.size, NULL);
}

/* ---- kinds of files ---- */

const char *type_of_bytes(bags_view file) {
    return bags_import_magic(file.data, file.size);
}

/* An unknown type may be the name of a file format: "flac", "tiff". */
static const char *own_ending(const char *type, char buffer[16]) {
    size_t size = name_size(type);
    if (size == 0 || size > 8 ||
        strspn(type, "abcdefghijklmnopqrstuvwxyz0123456789") < size)
        return "bin";
    memcpy(buffer, type, size);
    buffer[size] = 0;
    return buffer;
}

const char *type_ending(const char *type, bags_view blob, char buffer[16]) {
    const type_info *info = type_find(type);
    if (!info)
        return own_ending(type, buffer);
    if (!info->ending) {
        const char *kind = type_of_bytes(blob);
        return kind ? type_find(kind)->ending : "bin";
    }
    return info->kind == TYPE_ARRAY && !info->format && !strchr(type, '(')
               ? "msgpack"
               : info->ending;
}

const char *type_hint(const char *type) {
    return !strncmp(type, "zstd(", 5) &&
                   strcspn(type + 5, "([") < strcspn(type + 5, ")")
               ? "; zstd has the type inside and its arguments as one list, and [] "
                 "after "
                 "it: zstd(array,float32,64), zstd(utf8)[]"
               : "";
}

/* ---- help ---- */

static void put_row(text *out, const char *title, const char *words) {
    text_format(out, "    %-7s ", title);
    text_wrapped(out, words, 12, 12);
}

/* Write a row in the table of Python packages: its title, and a cell for each
 * version. */
static void put_cells(text *out, const char *title, char *const cells[]) {
    text_format(out, "%-24s", title);
    for (size_t i = 0; i < PYTHON_VERSIONS; i++)
        text_format(
            out, "%-*s%s", i ? 8 : 13, cells[i], i + 1 < PYTHON_VERSIONS ? "  " : "");
    while (out->buffer.data[out->size - 1] == ' ')
        out->size--;
    text_puts(out, "\n");
}

static void put_python(text *out, const char *form) {
    static char yes[] = "yes", no[] = "-";
    char *cells[PYTHON_VERSIONS], *types_read[PYTHON_VERSIONS];
    for (size_t i = 0; i < PYTHON_VERSIONS; i++) {
        char *type = types_read[i] = type_for_python(form, i);
        cells[i] = !type ? no : strcmp(type, form) ? type : yes;
    }
    put_cells(out, form, cells);
    for (size_t i = 0; i < PYTHON_VERSIONS; i++)
        free(types_read[i]);
}

static void put_python_table(text *out) {
    char *packages[PYTHON_VERSIONS], *versions[PYTHON_VERSIONS];
    static char yes[] = "yes", no[] = "-", needed[] = "needed";
    char *sequences[PYTHON_VERSIONS], *idx[PYTHON_VERSIONS];
    for (size_t i = 0; i < PYTHON_VERSIONS; i++) {
        const python_version *one = &python_versions[i];
        packages[i] = string_format("%s", one->name);
        versions[i] = strchr(packages[i], '-') + 1;
        versions[i][-1] = 0;
        sequences[i] = one->sequences ? yes : no;
        idx[i] = one->idx ? needed : no;
    }
    text_puts(out,
        "\n"
        "Types that the versions of the Python packages read: \"yes\", or the type\n"
        "under which --for VERSION of pack, images and import stores the values:\n"
        "\n");
    put_cells(out, "", packages);
    put_cells(out, "type", versions);
    for (size_t i = 0; i < TYPES; i++) {
        char *forms = string_format("%s", types[i].forms), *next;
        for (char *form = forms; form; form = next) {
            next = strstr(form, ", ");
            if (next) {
                *next = 0;
                next += 2;
            }
            put_python(out, form);
        }
        free(forms);
    }
    put_cells(out, "sequences: TYPE[]", sequences);
    put_cells(out, ".idx files: --idx", idx);
    for (size_t i = 0; i < PYTHON_VERSIONS; i++)
        free(packages[i]);
}

void types_help(text *out) {
    text_puts(out,
        "The type of a field states how its values become bytes. With a\n"
        "trailing [], as in utf8[], each datapoint has a sequence of values.\n"
        "\n");
    for (size_t i = 0; i < TYPES; i++) {
        text_format(out, "%s\n", types[i].forms);
        put_row(out, "value", types[i].value);
        put_row(out, "codec", types[i].format ? types[i].format : "built in");
    }
    put_python_table(out);
    text_puts(out, "\nDTYPE:");
    for (int i = BAGS_DTYPE_BOOL; i <= BAGS_DTYPE_COMPLEX128; i++)
        text_format(out, "%s %s",
            i == BAGS_DTYPE_INT8 || i == BAGS_DTYPE_FLOAT16 ? "\n      " : "",
            bags_dtype_name((bags_dtype)i));
    text_puts(out,
        "\n"
        "\n"
        "A list of lists is a sequence of arrays: array(float32,-1,3)[] has\n"
        "any number of arrays, each with any number of rows of 3. For other\n"
        "nested values use msgpack.\n"
        "\n"
        "Any other name of a-z, 0-9, - and _ is a type too: its blobs are\n"
        "written from {\"file\": PATH} or {\"base64\": TEXT} and read as they\n"
        "are. pack accepts such a name in --spec with --any-type.\n");
}
