/*
 * A type string and a blob, separated by NUL: a value that was decoded must encode
 * and decode again to the same value.
 */
// flavours: test: asan
#include "support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

static bool same_value(const bags_value *a, const bags_value *b) {
    if (a->kind != b->kind || a->size != b->size || a->uint != b->uint ||
        a->sint != b->sint || a->dtype != b->dtype || a->dims != b->dims)
        return false;
    for (size_t i = 0; i < a->dims; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return !a->size || memcmp(a->data, b->data, a->size) == 0;
}

static void try_codec(const bags_codec *codec, void *state, bags_view blob) {
    bags_buffer rooms[3];
    bags_value value, again;
    bags_view encoded;
    bags_error err;
    memset(rooms, 0, sizeof rooms);
    if (!codec->decode(state, blob, &rooms[0], &value, &err)) {
        bags_code code = codec->encode(state, &value, &rooms[1], &encoded, &err);
        demand(code == BAGS_OK, "a decoded value cannot be encoded");
        code = codec->decode(state, encoded, &rooms[2], &again, &err);
        demand(code == BAGS_OK, "what was encoded cannot be decoded");
        demand(same_value(&value, &again), "another value comes back");
    }
    for (int i = 0; i < 3; i++)
        bags_buffer_free(&rooms[i]);
}

static void try_type(const char *text, bags_view blob) {
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
        bags_view argument = bags_type_argument(&type, i);
        bags_dtype_parse((const char *)argument.data, argument.size, NULL);
        demand(bags_type_number(&type, i, &number) <= (argument.size > 0),
            "a number of nothing");
    }
    const bags_codec *codec = bags_registry_find(NULL, type.name);
    if (!codec)
        return;
    tally_start(&memory_used);
    if (!codec->open && type.count)
        return;
    if (codec->open &&
        codec->open(codec, &type, &memory_used.allocator, &state, &err)) {
        demand(memory_used.live == 0, "a codec that did not open keeps memory");
        return;
    }
    try_codec(codec, state, blob);
    if (codec->close)
        codec->close(state);
    demand(memory_used.live == 0, "a codec keeps memory");
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
    bags_view blob = {NULL, 0};
    if (length < size) {
        blob.data = data + length + 1;
        blob.size = size - length - 1;
    }
    try_type(text, blob);
    free(text);
    return 0;
}
