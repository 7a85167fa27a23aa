/*
 * The codecs of this build. If the library of a format was not found, the build has no
 * codec for it, but its blobs can still be packed and unpacked. Also reads the sizes of
 * images and videos from their headers.
 */
#include "command.h"

#include "formats.h"
#include "import.h"
#include "modules.h"
#include "values.h"

/* ---- codecs ---- */

option_number max_pixels;
static bags_jpeg_options jpeg_options;
static bags_png_options png_options;
static bags_webp_options webp_options;
static bags_zstd_options zstd_options, zstd_blobs; /* one for each registry */

/* A codec of this build. Its format is implemented in formats/FORMAT.c. */
typedef struct linked {
    const char *format, *names;
    const char *symbol;
    const bags_codec *codec; /* NULL: it is in a module, under this symbol */
    void *options;
    bool dictionaries; /* zstd only */
} linked;

static const linked all_linked[] = {
#ifdef BAGS_WITH_JPEG
    {"jpeg", "jpeg jpg", LINKED(bags_codec_jpeg), &jpeg_options, false},
#endif
#ifdef BAGS_WITH_PNG
    {"png", "png", LINKED(bags_codec_png), &png_options, false},
#endif
#ifdef BAGS_WITH_WEBP
    {"webp", "webp", LINKED(bags_codec_webp), &webp_options, false},
#endif
    {"numpy", "npy", NULL, &bags_codec_npy, NULL, false},
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

#define CODECS (sizeof all_linked / sizeof *all_linked)

/* Returns NULL, with an error, if the codec's module is missing. */
static const bags_codec *linked_codec(const linked *from, bags_error *err) {
    return from->codec
               ? from->codec
               : (const bags_codec *)module_find(from->format, from->symbol, err);
}

const bags_loader_images *images_linked(void) {
    static bags_loader_images images = {bags_resample, NULL, NULL, NULL, NULL};
#ifdef BAGS_WITH_JPEG
    images.jpeg_probe = bags_jpeg_probe;
    images.jpeg_decode = bags_jpeg_decode;
#endif
#ifdef BAGS_WITH_PNG
    images.png_probe = bags_png_probe;
    images.png_decode = bags_png_decode;
#endif
    return &images;
}

#ifdef BAGS_MODULES
#include <pthread.h>

/* The state of a codec whose module is opened when the first value is encoded or
 * decoded, rather than when a dataset with such a field is opened. */
typedef struct late {
    const linked *from;
    char *type;
    const bags_codec *codec; /* atomic; NULL: not open yet */
    void *state;             /* the state of that codec */
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

/* Fails in the same way as a codec that bags.h opens. */
static bags_code late_start(late *one, const bags_codec *codec, bags_error *err) {
    bags_allocator memory = bags_allocator_of(NULL);
    bags_codec with = *codec;
    bags_type type;
    bags_code code = bags_type_parse(one->type, &type, err);
    with.user = one->from->options;
    if (!code && with.open)
        code = with.open(&with, &type, &memory, &one->state, err);
    else if (!code && type.count)
        code = bags_fail(err, BAGS_ERROR_TYPE, "this type accepts no arguments");
    if (code)
        return bags_prefix(err, code, "type \"%.200s\": ", one->type);
    __atomic_store_n(&one->codec, codec, __ATOMIC_RELEASE);
    return BAGS_OK;
}

/* Returns the codec, opening it first if necessary; NULL with an error. */
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

/* The frame itself states this, so verify can report a missing dictionary without
 * opening the module. */
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

/* A dictionary was prepared before, so the codec is open. */
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

/* The next three are only called after an encode, so the codec is open. */
static bool late_holds(void *state) {
    late *one = (late *)state;
    return one->codec->dictionary->holds && one->codec->dictionary->holds(one->state);
}

static bags_code late_make(void *state, bool *made, bags_error *err) {
    late *one = (late *)state;
    return one->codec->dictionary->make(one->state, made, err);
}

static bags_code late_recode(void *state, bags_view blob, bags_buffer *scratch,
    bags_view *out, bags_error *err) {
    late *one = (late *)state;
    return one->codec->dictionary->recode(one->state, blob, scratch, out, err);
}

static const bags_codec_dictionary late_dictionary = {late_needed, late_begin,
    late_match, late_prepare, late_discard, late_decode_with, late_holds, late_make,
    late_recode};

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

static bool only_found; /* see registry_without_missing */

/* A registry is made when the first value is decoded or encoded. By then the options
 * are known, and a command that shows no value needs no codec. */
static const bags_registry *registry_make(linked own[CODECS], bags_zstd_options *zstd) {
    bags_registry *registry = bags_registry_create(NULL, &failure);
    must_open(registry);
    jpeg_options.max_pixels = png_options.max_pixels = webp_options.max_pixels =
        max_pixels.value;
    jpeg_options.allow_trailing = png_options.allow_trailing =
        webp_options.allow_trailing = true;
    for (size_t i = 0; all_linked[i].format; i++) {
        bags_error ignored;
        if (only_found && !linked_codec(&all_linked[i], &ignored))
            continue;
        own[i] = all_linked[i];
        if (own[i].dictionaries)
            own[i].options = zstd;
        registry_link(registry, &own[i]);
    }
    return registry;
}

const bags_registry *registry_get(void) {
    static const bags_registry *registry;
    static linked own[CODECS];
    if (!registry)
        zstd_options.registry = registry = registry_make(own, &zstd_options);
    return registry;
}

void registry_without_missing(void) { only_found = true; }

const bags_registry *registry_blobs(void) {
    static const bags_registry *registry;
    static linked own[CODECS];
    zstd_blobs.blobs = true;
    if (!registry)
        registry = registry_make(own, &zstd_blobs);
    return registry;
}

void registry_dictionary(const char *path) {
    static bags_buffer file; /* lives as long as the registries */
    const linked *from = all_linked;
    void *checked;
    zstd_options.no_dictionary = !strcmp(path, "none");
    while (from->format && !from->dictionaries)
        from++;
    if (zstd_options.no_dictionary || !from->format)
        return;
    zstd_options.dictionary = zstd_blobs.dictionary = file_read(path, &file);
    const bags_codec *zstd = linked_codec(from, &failure);
    must_open(zstd);
    if (zstd->dictionary->prepare(NULL, zstd_options.dictionary, &checked, &failure)) {
        failure_prefix("%s: ", path);
        die();
    }
    zstd->dictionary->discard(NULL, checked);
}

void registry_expand_palettes(bool expand) { png_options.expand = expand; }

void registry_orient(void) {
    jpeg_options.orient = png_options.orient = webp_options.orient = true;
}

bool codec_exists(const char *type) {
    bags_view name = {(const unsigned char *)type, strcspn(type, "([")};
    return bags_registry_find(registry_get(), name) != NULL;
}

bool type_is_valid(const char *type) {
    static bags_buffer scratch;
    bags_view nothing = {(const unsigned char *)"", 0};
    bags_value ignored;
    /* The arguments are checked first, so any later failure comes from the blob. */
    bool valid =
        !codec_exists(type) || bags_decode(registry_get(), type, nothing, &scratch,
                                   &ignored, &failure) != BAGS_ERROR_TYPE;
    char *inside = valid ? type_inside(type) : NULL;
    valid = valid && (!inside || type_is_valid(inside));
    free(inside);
    return valid;
}

char *type_complete(const char *type) {
    static bags_buffer out;
    bool legal = !bags_type_complete(registry_get(), type, &out, &failure);
    return string_format("%s", legal ? (const char *)out.data : type);
}

/* For a known type, the message names the format missing from the build; for an unknown
 * type, it suggests a similar one. */
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
    bool guessed = bags_type_check(registry_get(), type, &failure) && failure.remedy;
    fail(BAGS_ERROR_TYPE, "no codec for type \"%.80s\"%s%s", type, guessed ? "; " : "",
        guessed ? temp_format("%s", failure.message + failure.remedy) : "");
}

void formats_print(void) {
    fputs("formats:", stdout);
    for (size_t i = 0; all_linked[i].format; i++)
        if (i == 0 || strcmp(all_linked[i].format, all_linked[i - 1].format))
            printf(" %s", all_linked[i].format);
    puts("");
}

/* ---- what is in images and videos ---- */

static void put_size(text *out, uint64_t height, uint64_t width) {
    text_member_number(out, "height", height);
    text_member_number(out, "width", width);
}

/* Returns false if the module of a format is missing, and prints a note the first
 * time. */
static bool has_format(const char *format, bool *said) {
#ifdef BAGS_MODULES
    char *symbol = string_format("bags_%s_probe", format);
    bool found = module_find(format, symbol, &failure) != NULL;
    free(symbol);
    if (found)
        return true;
    if (!*said)
        note_failure();
    *said = true;
    failure.code = BAGS_ERROR_TYPE;
    return false;
#else
    (void)format;
    (void)said;
    return true;
#endif
}

/* Only reads the image's header, so the number of pixels is not limited. */
static void put_image(const char *type, bags_view blob, text *out) {
    const char *ending = type_find(type)->ending;
    bags_image image;
    memset(&image, 0, sizeof image);
    failure.code = BAGS_ERROR_TYPE;
    (void)has_format; /* unused in a build without the codecs */
    (void)ending;
    (void)blob;
#ifdef BAGS_WITH_JPEG
    bags_jpeg_options jpeg = {0};
    jpeg.max_pixels = UINT64_MAX;
    static bool said_jpeg;
    if (!strcmp(ending, "jpg") && has_format("jpeg", &said_jpeg))
        failure.code = bags_jpeg_probe(blob, &jpeg, &image, &failure);
#endif
#ifdef BAGS_WITH_PNG
    bags_png_options png = {0};
    png.max_pixels = UINT64_MAX;
    static bool said_png;
    if (!strcmp(ending, "png") && has_format("png", &said_png))
        failure.code = bags_png_probe(blob, &png, &image, &failure);
#endif
#ifdef BAGS_WITH_WEBP
    bags_webp_options webp = {0};
    webp.max_pixels = UINT64_MAX;
    static bool said_webp;
    if (!strcmp(ending, "webp") && has_format("webp", &said_webp))
        failure.code = bags_webp_probe(blob, &webp, &image, &failure);
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

/* Only reads the header, but a video needs its library for this. */
void media_members(const char *type, bags_view blob, text *out) {
    type_class kind = type_kind(type);
    if (kind == TYPE_IMAGE)
        put_image(type, blob, out);
    if (kind == TYPE_VIDEO)
        put_video(blob, out);
}
