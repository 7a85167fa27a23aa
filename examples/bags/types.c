/*
 * What the command knows about types: one row for each, which says how values
 * are shown, which file has the codec, and which versions of the Python packages
 * read it. And the codecs
 * themselves: those of the formats whose libraries were found when the command
 * was built. Without one, blobs of its types are still packed and unpacked.
 */
#include "command.h"

#include "formats.h"
#include "import.h"
#include "modules.h"
#include "values.h"

const python_version python_versions[PYTHON_VERSIONS] = {
    {"bags-0.5", true, false},
    {"granular-0.16", true, false},
    {"granular-0.21", true, false},
    {"granular-0.22", false, true},
};

#define NAMED(name)                                                                    \
    { name, name, name, name }

/* Rows of one name are next to each other; the first is what type_find finds. */
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
        "-1: any. DTYPE alone means array(DTYPE): one number",
        NULL, {"array*", "array", "array", "array"}, "bin", TYPE_ARRAY},
    {"array", "array", "an array of any dtype and shape, which the blob states", NULL,
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
    {"mp4", "mp4, mp4(FPS), mp4(FPS,CODEC)",
        "an MP4 video; CODEC: mpeg4, h264, hevc, vp9, av1", "formats/mp4.c (FFmpeg)",
        {"mp4*", "mp4", "mp4", "mp4"}, "mp4", TYPE_VIDEO},
    {"webm", "webm, webm(FPS), webm(FPS,CODEC)", "a WebM video; CODEC: vp9, av1",
        "formats/mp4.c (FFmpeg)", {NULL, "webm", "webm", "webm"}, "webm", TYPE_VIDEO},
    {"zstd", "zstd(TYPE), zstd(TYPE,ARGUMENTS)",
        "a value of TYPE, or of TYPE(ARGUMENTS), which is compressed: zstd(utf8), "
        "zstd(array,float32,64)",
        "formats/zstd.c (zstd)", NAMED("TYPE"), "zst", TYPE_OTHER},
};

#define TYPES (sizeof types / sizeof *types)

/* A type is a name, then arguments in parentheses, then [] of a sequence. */
static size_t name_size(const char *type) { return strcspn(type, "(["); }

const type_info *type_find(const char *type) {
    size_t size = name_size(type);
    for (size_t i = 0; i < TYPES; i++)
        if (strlen(types[i].name) == size && !memcmp(types[i].name, type, size))
            return &types[i];
    return NULL;
}

/* True if the type is one of the forms of a row: with arguments, or without. */
static bool has_form(const type_info *info, const char *type) {
    size_t size = name_size(type);
    return strlen(info->name) == size && !memcmp(info->name, type, size) &&
           (type[size] == '(' ? strchr(info->forms, '(') != NULL
                              : info->forms[size] != '(');
}

/* NULL also of the forms in the table, whose capitals no type has. */
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

/* Keeps the arguments where the table has an asterisk, and the [] of a sequence. */
char *type_for_python(const char *type, size_t version) {
    char *inside = type_inside(type);
    if (inside) {
        type_class kind = type_kind(inside);
        /* To decode and encode an image again would change its pixels. */
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

/* What is compressed is not a file of an image or a video. */
type_class type_kind(const char *type) {
    const type_info *info = type_find(type);
    char *inside = type_inside(type);
    type_class kind = inside ? type_kind(inside) : info ? info->kind : TYPE_OTHER;
    free(inside);
    return inside && (kind == TYPE_IMAGE || kind == TYPE_VIDEO) ? TYPE_OTHER : kind;
}

bool type_is_valid(const char *type) {
    static bags_buffer scratch;
    bags_view nothing = {(const unsigned char *)"", 0};
    bags_value ignored;
    /* The arguments are checked first: any other failure is of the blob. */
    bool valid =
        !codec_exists(type) || bags_decode(registry_get(), type, nothing, &scratch,
                                   &ignored, &failure) != BAGS_ERROR_TYPE;
    char *inside = valid ? type_inside(type) : NULL;
    valid = valid && (!inside || type_is_valid(inside));
    free(inside);
    return valid;
}

/* The first argument of array(DTYPE,...); npy has none. */
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

/* An unknown type may be a kind of file: "flac", "tiff". */
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

char *type_complete(const char *type) {
    static bags_buffer out;
    bool legal = !bags_type_complete(registry_get(), type, &out, &failure);
    return string_format("%s", legal ? (const char *)out.data : type);
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

/* A row of the table of Python packages: its title, and a cell for each version. */
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
        "What the versions of the Python packages read: \"yes\", or the type\n"
        "as which --for VERSION of pack, images and import stores the values:\n"
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

/* ---- codecs ---- */

option_number max_pixels;
static bags_jpeg_options jpeg_options;
static bags_png_options png_options;
#ifdef BAGS_WITH_ZSTD
static bags_zstd_options zstd_options;
static bags_zstd_options zstd_blobs;
#endif

/* A codec of this build, of a format whose file is formats/FORMAT.c. */
typedef struct linked {
    const char *format, *names;
    const char *symbol;
    const bags_codec *codec; /* NULL: in a module, with this symbol */
    void *options;
    bool dictionaries; /* of zstd */
} linked;

static const linked all_linked[] = {
#ifdef BAGS_WITH_JPEG
    {"jpeg", "jpeg jpg", LINKED(bags_codec_jpeg), &jpeg_options, false},
#endif
#ifdef BAGS_WITH_PNG
    {"png", "png", LINKED(bags_codec_png), &png_options, false},
#endif
#ifdef BAGS_WITH_NUMPY
    {"numpy", "npy", NULL, &bags_codec_npy, NULL, false},
#endif
#ifdef BAGS_WITH_MSGPACK
    {"msgpack", "msgpack", LINKED(bags_codec_msgpack), NULL, false},
    {"msgpack", "tree", LINKED(bags_codec_tree), NULL, false},
#endif
#ifdef BAGS_WITH_MP4
    {"mp4", "mp4 webm", LINKED(bags_codec_mp4), NULL, false},
#endif
#ifdef BAGS_WITH_ZSTD
    {"zstd", "zstd", LINKED(bags_codec_zstd), &zstd_options, true},
#endif
    {NULL, NULL, NULL, NULL, NULL, false},
};

#ifdef BAGS_WITH_ZSTD
static const linked zstd_of_blobs = {
    "zstd", "zstd", LINKED(bags_codec_zstd), &zstd_blobs, true};
#endif

#if defined(BAGS_MODULES) || defined(BAGS_WITH_ZSTD)
/* NULL with an error: its module is missing. */
static const bags_codec *linked_codec(const linked *from, bags_error *err) {
    return from->codec
               ? from->codec
               : (const bags_codec *)module_find(from->format, from->symbol, err);
}
#endif

#ifdef BAGS_MODULES
#include <pthread.h>

/* The state of a codec that opens its module when a value is encoded or decoded, not when
 * a dataset with such a field is opened. */
typedef struct late {
    const linked *from;
    char *type;
    const bags_codec *codec; /* atomic; NULL: not open */
    void *state;             /* of that codec */
} late;

static bags_code late_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *memory, void **state, bags_error *err) {
    late *made = (late *)allocate(1, sizeof *made);
    (void)memory;
    (void)err;
    made->from = (const linked *)codec->user;
    made->type = string_format("%s", (const char *)type->name.data);
    *state = made;
    return BAGS_OK;
}

/* Fails like a codec that bags.h opens. */
static bags_code late_start(late *one, const bags_codec *codec, bags_error *err) {
    bags_allocator memory = bags_allocator_of(NULL);
    bags_codec with = *codec;
    bags_type type;
    bags_error why;
    bags_code code = bags_type_parse(one->type, &type, &why);
    with.user = one->from->options;
    if (!code && with.open)
        code = with.open(&with, &type, &memory, &one->state, &why);
    else if (!code && type.count)
        code = bags_fail(&why, BAGS_ERROR_TYPE, "this type accepts no arguments");
    if (code)
        return bags_fail(err, code, "type \"%.200s\": %s", one->type, why.message);
    __atomic_store_n(&one->codec, codec, __ATOMIC_RELEASE);
    return BAGS_OK;
}

/* The codec, which is open; NULL with an error. */
static const bags_codec *late_get(late *one, bags_error *err) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    const bags_codec *codec = __atomic_load_n(&one->codec, __ATOMIC_ACQUIRE);
    if (codec)
        return codec;
    pthread_mutex_lock(&lock);
    codec = one->codec ? one->codec : linked_codec(one->from, err);
    if (codec && !one->codec && late_start(one, codec, err))
        codec = NULL;
    pthread_mutex_unlock(&lock);
    return codec;
}

static bags_code late_encode(void *state, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    late *one = (late *)state;
    const bags_codec *codec = late_get(one, err);
    return codec ? codec->encode(one->state, value, scratch, blob, err) : err->code;
}

static bags_code late_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    late *one = (late *)state;
    const bags_codec *codec = late_get(one, err);
    return codec ? codec->decode(one->state, blob, scratch, value, err) : err->code;
}

static void late_close(void *state) {
    late *one = (late *)state;
    if (one->codec && one->codec->close)
        one->codec->close(one->state);
    free(one->type);
    free(one);
}

/* A frame states it, so that verify finds a missing dictionary without the module. */
static bool late_needed(void *state, bags_view blob) {
    bags_type type = {{(const unsigned char *)"zstd", 4}, {NULL, 0}, 0, false};
    (void)state;
    return format_needs_dictionary(&type, blob);
}

static bags_code late_begin(void *state, bags_view bytes, bags_error *err) {
    late *one = (late *)state;
    const bags_codec *codec = late_get(one, err);
    return codec ? codec->dictionary->start(one->state, bytes, err) : err->code;
}

static bags_code late_match(
    void *state, bags_view blob, bags_view *bytes, bags_error *err) {
    late *one = (late *)state;
    const bags_codec *codec = late_get(one, err);
    return codec ? codec->dictionary->find(one->state, blob, bytes, err) : err->code;
}

static bags_code late_prepare(
    void *state, bags_view bytes, void **prepared, bags_error *err) {
    late *one = (late *)state;
    const bags_codec *codec = late_get(one, err);
    return codec ? codec->dictionary->prepare(one->state, bytes, prepared, err)
                 : err->code;
}

/* A dictionary was prepared: the codec is open. */
static void late_discard(void *state, void *prepared) {
    late *one = (late *)state;
    one->codec->dictionary->discard(one->state, prepared);
}

static bags_code late_decode_with(void *state, const void *prepared, bags_view blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    late *one = (late *)state;
    return one->codec->dictionary->decode(
        one->state, prepared, blob, scratch, value, err);
}

static const bags_codec_dictionary late_dictionary = {
    late_needed, late_begin, late_match, late_prepare, late_discard, late_decode_with};

#endif

/* `from` must stay valid. */
static void registry_link(bags_registry *registry, const linked *from) {
    bags_codec codec;
#ifdef BAGS_MODULES
    bags_codec of_module = {from->names, late_open, late_encode, late_decode,
        late_close, (void *)(uintptr_t)from,
        from->dictionaries ? &late_dictionary : NULL};
    codec = of_module;
#endif
    if (from->codec) {
        codec = *from->codec;
        codec.user = from->options;
    }
    must(bags_registry_add(registry, &codec, &failure));
}

/* Made when the first value is decoded or encoded: the options are known by then, and a
 * command that shows no value needs no codec. */
static bags_registry *registry_make(void) {
    bags_registry *registry = bags_registry_create(NULL, &failure);
    must_open(registry);
    jpeg_options.max_pixels = png_options.max_pixels = max_pixels.value;
    jpeg_options.allow_trailing = png_options.allow_trailing = true;
    for (size_t i = 0; all_linked[i].format; i++)
        registry_link(registry, &all_linked[i]);
    return registry;
}

const bags_registry *registry_get(void) {
    static bags_registry *registry;
    if (registry)
        return registry;
    registry = registry_make();
#ifdef BAGS_WITH_ZSTD
    zstd_options.registry = registry;
#endif
    return registry;
}

const bags_registry *registry_blobs(void) {
    static bags_registry *registry;
    if (registry)
        return registry;
    registry = registry_make();
#ifdef BAGS_WITH_ZSTD
    zstd_blobs.blobs = true;
    registry_link(registry, &zstd_of_blobs);
#endif
    return registry;
}

void registry_dictionary(const char *path) {
#ifdef BAGS_WITH_ZSTD
    static bags_buffer file; /* as long as the registries */
    const bags_codec *zstd;
    void *checked;
    zstd_options.no_dictionary = !strcmp(path, "none");
    if (zstd_options.no_dictionary)
        return;
    zstd_options.dictionary = zstd_blobs.dictionary = file_read(path, &file);
    zstd = linked_codec(&zstd_of_blobs, &failure);
    must_open(zstd);
    if (zstd->dictionary->prepare(NULL, zstd_options.dictionary, &checked, &failure)) {
        failure_prefix("%s: ", path);
        die();
    }
    zstd->dictionary->discard(NULL, checked);
#else
    (void)path;
#endif
}

void registry_expand_palettes(bool expand) { png_options.expand = expand; }

void registry_orient(void) { jpeg_options.orient = png_options.orient = true; }

bool codec_exists(const char *type) {
    bags_view name = {(const unsigned char *)type, name_size(type)};
    return bags_registry_find(registry_get(), name) != NULL;
}

/* A known type names the format that the build lacks; an unknown one, a similar type. */
void codec_check(const char *type) {
    const type_info *info = type_find(type);
    char *inside = type_inside(type);
    if (codec_exists(type)) {
        if (inside)
            codec_check(inside);
        free(inside);
        return;
    }
    if (info && info->format)
        fail(BAGS_ERROR_TYPE,
            "no codec for type \"%.80s\" in this build of bags; %s has one", type,
            info->format);
    const char *hint = bags_type_check(registry_get(), type, &failure)
                           ? strstr(failure.message, "; did you mean")
                           : NULL;
    fail(BAGS_ERROR_TYPE, "no codec for type \"%.80s\"%s", type,
        hint ? temp_format("%s", hint) : "");
}

void formats_print(void) {
    fputs("formats:", stdout);
    for (size_t i = 0; all_linked[i].format; i++)
        if (i == 0 || strcmp(all_linked[i].format, all_linked[i - 1].format))
            printf(" %s", all_linked[i].format);
    puts(all_linked[0].format ? "" : " none; see formats/");
}

/* ---- what is in images and videos ---- */

static void put_size(text *out, uint64_t height, uint64_t width) {
    text_member_number(out, "height", height);
    text_member_number(out, "width", width);
}

/* False, once with a remark, if the module of a format is missing. */
static bool has_format(const char *format, bool *said) {
#ifdef BAGS_MODULES
    char *symbol = string_format("bags_%s_probe", format);
    bool found = module_find(format, symbol, &failure) != NULL;
    free(symbol);
    if (found)
        return true;
    if (!*said)
        note("%s", failure.message);
    *said = true;
    failure.code = BAGS_ERROR_TYPE;
    return false;
#else
    (void)format;
    (void)said;
    return true;
#endif
}

/* Only the header of an image is read, so its number of pixels has no limit. */
static void put_image(const char *type, bags_view blob, text *out) {
    bool is_png = !strcmp(type_find(type)->ending, "png");
    bags_image image;
    memset(&image, 0, sizeof image);
    failure.code = BAGS_ERROR_TYPE;
    (void)has_format; /* in a build without the codecs */
    (void)is_png;
    (void)blob;
#ifdef BAGS_WITH_JPEG
    bags_jpeg_options jpeg = {0};
    jpeg.max_pixels = UINT64_MAX;
    static bool said_jpeg;
    if (!is_png && has_format("jpeg", &said_jpeg))
        failure.code = bags_jpeg_probe(blob, &jpeg, &image, &failure);
#endif
#ifdef BAGS_WITH_PNG
    bags_png_options png = {0};
    png.max_pixels = UINT64_MAX;
    static bool said_png;
    if (is_png && has_format("png", &said_png))
        failure.code = bags_png_probe(blob, &png, &image, &failure);
#endif
    if (failure.code)
        return;
    put_size(out, image.height, image.width);
    text_member_number(out, "channels", image.channels);
}

#ifdef BAGS_WITH_MP4

static void put_video(bags_view blob, text *out) {
    bags_mp4_options options = {0};
    bags_mp4_info info;
    options.max_pixels = UINT64_MAX;
    static bool said;
    if (!has_format("mp4", &said))
        return;
    failure.code = bags_mp4_probe(blob, &options, &info, &failure);
    if (failure.code)
        return;
    text_member_number(out, "frames", info.frames);
    put_size(out, info.height, info.width);
}

static bags_mp4_reader *frames;

bool frames_open(bags_view blob, uint64_t *count) {
    bags_mp4_reader_close(frames);
    frames = bags_mp4_reader_open(blob, NULL, &failure);
    if (frames)
        *count = bags_mp4_reader_info(frames)->frames;
    return frames != NULL;
}

bool frames_get(uint64_t start, uint64_t stop, uint64_t step, bags_value *value) {
    static bags_buffer scratch;
    return !bags_mp4_reader_get(frames, start, stop, step, &scratch, value, &failure);
}

#else

static void put_video(bags_view blob, text *out) {
    (void)blob;
    (void)out;
    failure.code = BAGS_ERROR_TYPE;
}

bool frames_open(bags_view blob, uint64_t *count) {
    (void)blob;
    (void)count;
    codec_check("mp4");
    return false;
}

bool frames_get(uint64_t start, uint64_t stop, uint64_t step, bags_value *value) {
    (void)start;
    (void)stop;
    (void)step;
    (void)value;
    return false;
}

#endif

/* From the header alone; a video needs its library. */
void media_members(const char *type, bags_view blob, text *out) {
    type_class kind = type_kind(type);
    if (kind == TYPE_IMAGE)
        put_image(type, blob, out);
    if (kind == TYPE_VIDEO)
        put_video(blob, out);
}
