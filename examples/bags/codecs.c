/*
 * The formats: those whose libraries were there when the command was built.
 * Without one its blobs are still packed and unpacked, as they are.
 */
#include "command.h"

#include "../../formats/formats.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#ifdef BAGS_WITH_MSGPACK
#include <msgpack.h>
#endif

static const bags_codec *const linked[] = {
#ifdef BAGS_WITH_JPEG
    &bags_codec_jpeg,
#endif
#ifdef BAGS_WITH_PNG
    &bags_codec_png,
#endif
#ifdef BAGS_WITH_NUMPY
    &bags_codec_npy,
#endif
#ifdef BAGS_WITH_MSGPACK
    &bags_codec_msgpack,
    &bags_codec_tree,
#endif
#ifdef BAGS_WITH_MP4
    &bags_codec_mp4,
#endif
    NULL,
};

bags_registry *codecs_make(bags_error *err) {
    bags_registry *codecs = bags_registry_create(NULL, err);
    for (size_t i = 0; codecs && linked[i]; i++) {
        if (bags_registry_add(codecs, linked[i], err)) {
            bags_registry_free(codecs);
            return NULL;
        }
    }
    return codecs;
}

/* ---- a codec alone ---- */

static void *resize(void *user, void *data, size_t old_size, size_t new_size) {
    (void)user;
    (void)old_size;
    if (new_size)
        return realloc(data, new_size);
    free(data);
    return NULL;
}

static const bags_allocator memory = {resize, NULL};

static const bags_codec *open_codec(const bags_registry *codecs,
    const char *type, void **state, bags_error *err) {
    bags_type parsed;
    if (bags_type_parse(type, &parsed, err))
        return NULL;
    const bags_codec *codec = bags_registry_find(codecs, parsed.name);
    *state = NULL;
    if (!codec)
        bags_fail(err, BAGS_ERROR_TYPE,
            "this program was built without the format %s", type);
    else if (codec->open && codec->open(codec, &parsed, &memory, state, err))
        return NULL;
    return codec;
}

static bags_code fail_one_way(bags_error *err, const char *type) {
    return bags_fail(err, BAGS_ERROR_TYPE, "the format %s goes one way only",
        type);
}

bags_code encode_as(const bags_registry *codecs, const char *type,
    const bags_value *value, bags_buffer *scratch, bags_view *blob,
    bags_error *err) {
    void *state;
    const bags_codec *codec = open_codec(codecs, type, &state, err);
    if (!codec)
        return err->code;
    bags_code code = codec->encode
                         ? codec->encode(state, value, scratch, blob, err)
                         : fail_one_way(err, type);
    if (codec->close)
        codec->close(state);
    return code;
}

bags_code decode_as(const bags_registry *codecs, const char *type,
    bags_view blob, bags_buffer *scratch, bags_value *value, bags_error *err) {
    void *state;
    const bags_codec *codec = open_codec(codecs, type, &state, err);
    if (!codec)
        return err->code;
    bags_code code = codec->decode
                         ? codec->decode(state, blob, scratch, value, err)
                         : fail_one_way(err, type);
    if (codec->close)
        codec->close(state);
    return code;
}

/* ---- files of a known kind ---- */

typedef struct magic {
    const char *type;
    size_t at, size;
    const char *bytes;
} magic;

static const magic magics[] = {
    {"npy", 0, 6, "\x93NUMPY"},
    {"jpeg", 0, 3, "\xFF\xD8\xFF"},
    {"png", 0, 8, "\x89PNG\r\n\x1A\n"},
    {"mp4", 4, 4, "ftyp"},
    {"webm", 0, 4, "\x1A\x45\xDF\xA3"},
};

const char *type_of_bytes(bags_view file) {
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        const magic *m = &magics[i];
        if (file.size >= m->at + m->size &&
            !memcmp(file.data + m->at, m->bytes, m->size))
            return m->type;
    }
    return NULL;
}

static bool ends_in(const char *path, const char *ending) {
    size_t size = strlen(path), length = strlen(ending);
    return size > length && !strcasecmp(path + size - length, ending);
}

bags_code value_from_file(const bags_registry *codecs, const char *path,
    bags_view file, bags_buffer *scratch, bags_value *out, bags_error *err) {
    const char *type = type_of_bytes(file);
    if (!type && ends_in(path, ".txt")) {
        *out = bags_utf8_sized((const char *)file.data, file.size);
        return BAGS_OK;
    }
    if (!type && ends_in(path, ".msgpack"))
        type = "msgpack";
    if (!type)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: \"from\" takes .npy, JPEG, PNG, MP4, WebM, .txt and .msgpack "
            "files, and this is none", path);
    bags_code code = decode_as(codecs, type, file, scratch, out, err);
    return code ? fail_prefix(err, "%s: ", path) : BAGS_OK;
}

/* ---- msgpack ---- */

#ifdef BAGS_WITH_MSGPACK

bags_code msgpack_to_json(bags_view blob, text *out, bags_error *err) {
    bags_buffer scratch = {0};
    bags_view json;
    bags_code code = bags_msgpack_to_json(blob, &scratch, &json, err);
    if (!code)
        text_put(out, json.data, json.size);
    bags_buffer_free(&scratch);
    return code;
}

static int pack_into(void *data, const char *bytes, size_t size) {
    text *out = (text *)data;
    text_put(out, bytes, size);
    return out->failed ? -1 : 0;
}

static int pack_json(msgpack_packer *to, json_object *value);

static int pack_text(msgpack_packer *to, const char *string, size_t size) {
    int bad = msgpack_pack_str(to, size);
    return bad ? bad : msgpack_pack_str_body(to, string, size);
}

static int pack_object(msgpack_packer *to, json_object *value) {
    int bad = msgpack_pack_map(to, (size_t)json_object_object_length(value));
    json_object_iter at;
    json_object_object_foreachC(value, at) {
        if (!bad)
            bad = pack_text(to, at.key, strlen(at.key));
        if (!bad)
            bad = pack_json(to, at.val);
    }
    return bad;
}

static int pack_list(msgpack_packer *to, json_object *value) {
    size_t count = json_object_array_length(value);
    int bad = msgpack_pack_array(to, count);
    for (size_t i = 0; i < count && !bad; i++)
        bad = pack_json(to, json_object_array_get_idx(value, i));
    return bad;
}

/* Integers above 2^63-1 and negative ones are both int to json-c. */
static int pack_integer(msgpack_packer *to, json_object *value) {
    int64_t number = json_object_get_int64(value);
    if (number < 0)
        return msgpack_pack_int64(to, number);
    return msgpack_pack_uint64(to, json_object_get_uint64(value));
}

/* Recursive, as deep as json_read lets JSON be nested. */
static int pack_json(msgpack_packer *to, json_object *value) {
    switch (json_object_get_type(value)) {
    case json_type_null:
        return msgpack_pack_nil(to);
    case json_type_boolean:
        return json_object_get_boolean(value) ? msgpack_pack_true(to)
                                              : msgpack_pack_false(to);
    case json_type_double:
        return msgpack_pack_double(to, json_object_get_double(value));
    case json_type_int:
        return pack_integer(to, value);
    case json_type_string:
        return pack_text(to, json_object_get_string(value),
            (size_t)json_object_get_string_len(value));
    case json_type_array:
        return pack_list(to, value);
    case json_type_object:
        return pack_object(to, value);
    }
    return -1;
}

bags_code msgpack_from_json(json_object *value, bags_buffer *out, size_t *size,
    bags_error *err) {
    text into = {*out, 0, false};
    msgpack_packer packer;
    msgpack_packer_init(&packer, &into, pack_into);
    int bad = pack_json(&packer, value);
    *out = into.buffer;
    *size = into.size;
    return bad ? fail_memory(err) : BAGS_OK;
}

#else

bags_code msgpack_to_json(bags_view blob, text *out, bags_error *err) {
    (void)blob;
    (void)out;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "this program was built without the format msgpack");
}

bags_code msgpack_from_json(json_object *value, bags_buffer *out, size_t *size,
    bags_error *err) {
    (void)value;
    (void)out;
    (void)size;
    return bags_fail(err, BAGS_ERROR_TYPE,
        "this program was built without the format msgpack");
}

#endif
