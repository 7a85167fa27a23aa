/*
 * A type string and a blob, with a zero byte between: what is decoded must be
 * encoded and decoded again to the same. And the whole input as a spec.json.
 */
#include "support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

static bool same_value(const bags_value *a, const bags_value *b) {
    if (a->kind != b->kind || a->size != b->size || a->uint != b->uint
        || a->sint != b->sint || a->dtype != b->dtype || a->dims != b->dims)
        return false;
    for (size_t i = 0; i < a->dims; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return !a->size || memcmp(a->data, b->data, a->size) == 0;
}

static void try_codec(const bags_codec *codec, void *state, bags_bytes blob) {
    bags_buffer rooms[3];
    bags_value value, again;
    bags_bytes encoded;
    bags_error err;
    memset(rooms, 0, sizeof(rooms));
    if (!codec->decode(state, blob, &rooms[0], &value, &err)) {
        bags_code code = codec->encode(state, &value, &rooms[1], &encoded,
            &err);
        demand(code == BAGS_OK, "a decoded value cannot be encoded");
        code = codec->decode(state, encoded, &rooms[2], &again, &err);
        demand(code == BAGS_OK, "what was encoded cannot be decoded");
        demand(same_value(&value, &again), "another value comes back");
    }
    for (int i = 0; i < 3; i++)
        bags_buffer_free(&rooms[i]);
}

static void try_type(const char *text, bags_bytes blob) {
    tally memory_used;
    bags_type type;
    bags_error err;
    void *state = NULL;
    uint64_t number;
    if (bags_type_parse(text, &type, &err)) {
        demand(err.code == BAGS_ERROR_TYPE, "another code");
        return;
    }
    for (size_t i = 0; i <= type.count && i < 100; i++) {
        bags_bytes argument = bags_type_argument(&type, i);
        bags_dtype_parse((const char *)argument.data, argument.size, NULL);
        demand(bags_type_number(&type, i, &number) <= (argument.size > 0),
            "a number of nothing");
    }
    const bags_codec *codec = bags_codecs_find(NULL, type.name);
    if (!codec)
        return;
    tally_start(&memory_used);
    if (!codec->open && type.count)
        return;
    if (codec->open && codec->open(codec, &type, &memory_used.allocator, &state,
            &err)) {
        demand(memory_used.live == 0, "a codec that did not open keeps memory");
        return;
    }
    try_codec(codec, state, blob);
    if (codec->close)
        codec->close(state);
    demand(memory_used.live == 0, "a codec keeps memory");
}

static void try_spec(const uint8_t *data, size_t size) {
    memory_disk m;
    bags_reader_options options;
    bags_error err;
    size_t count = 0;
    memory_disk_start(&m);
    memory_disk_save(&m, "x/spec.json", data, size);
    memory_disk_save(&m, "x/refs.bag", "\0\0\0\0\0\0\0\0", 8);
    memset(&options, 0, sizeof(options));
    options.io = &m.io;
    bags_reader *reader = bags_reader_open("x", &options, &err);
    if (reader) {
        const bags_field *fields = bags_reader_fields(reader, &count);
        for (size_t i = 0; i < count; i++) {
            bags_type type;
            demand(bags_type_parse(fields[i].type, &type, &err) == BAGS_OK,
                "a spec with a wrong type");
            demand(!strchr(fields[i].name, '/')
                && strcmp(fields[i].name, "refs") != 0, "a wrong name");
            demand(i == 0 || strcmp(fields[i - 1].name, fields[i].name) < 0,
                "names out of order");
        }
    }
    bags_reader_close(reader);
    memory_disk_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t length = 0;
    while (length < size && data[length])
        length++;
    char *text = (char *)malloc(length + 1);
    if (!text)
        return 0;
    memcpy(text, data, length);
    text[length] = 0;
    bags_bytes blob = {NULL, 0};
    if (length < size) {
        blob.data = data + length + 1;
        blob.size = size - length - 1;
    }
    try_type(text, blob);
    free(text);
    try_spec(data, size);
    return 0;
}
