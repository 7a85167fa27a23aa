/*
 * Any bytes as msgpack: decode, look at every value, print it as JSON, encode
 * it, and decode that again, which must then give the same blob.
 */
// flavours: test: asan
#include "../../bags.h"
#include "../../formats/formats.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#include <msgpack.h>

static volatile unsigned seen;

static void look(const void *data, size_t size) {
    const unsigned char *bytes = (const unsigned char *)data;
    unsigned sum = 0;
    for (size_t i = 0; i < size; i++)
        sum += bytes[i];
    seen += sum;
}

static void look_at_array(const msgpack_object *object) {
    bags_buffer scratch = {0};
    bags_value value;
    if (!bags_tree_array(object, &scratch, &value, NULL)) {
        look(value.shape, value.dims * sizeof *value.shape);
        look(value.data, value.size);
        if ((uintptr_t)value.data % bags_dtype_size(value.dtype))
            abort();
        if (!bags_tree_is_array(object))
            abort();
    }
    bags_buffer_free(&scratch);
}

static void look_at(const msgpack_object *object) {
    if (object->type == MSGPACK_OBJECT_STR || object->type == MSGPACK_OBJECT_BIN)
        look(object->via.str.ptr, object->via.str.size);
    if (object->type == MSGPACK_OBJECT_EXT)
        look(object->via.ext.ptr, object->via.ext.size);
    if (object->type == MSGPACK_OBJECT_ARRAY) {
        look_at_array(object);
        for (uint32_t i = 0; i < object->via.array.size; i++)
            look_at(&object->via.array.ptr[i]);
    }
    if (object->type == MSGPACK_OBJECT_MAP)
        for (uint32_t i = 0; i < object->via.map.size; i++) {
            look_at(&object->via.map.ptr[i].key);
            look_at(&object->via.map.ptr[i].val);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bags_buffer buffers[4];
    bags_view blob = {data, size}, json, first, second;
    bags_value value;
    const msgpack_object *object;
    memset(buffers, 0, sizeof buffers);
    if (bags_codec_msgpack.decode(NULL, blob, &buffers[0], &value, NULL))
        goto done;
    object = (const msgpack_object *)value.object;
    look_at(object);
    if (bags_msgpack_print(object, &buffers[1], &json, NULL) || json.size == 0 ||
        bags_codec_msgpack.encode(NULL, &value, &buffers[2], &first, NULL) ||
        first.size > size ||
        bags_codec_msgpack.decode(NULL, first, &buffers[0], &value, NULL) ||
        bags_codec_msgpack.encode(NULL, &value, &buffers[3], &second, NULL) ||
        first.size != second.size || memcmp(first.data, second.data, first.size) != 0)
        abort();
done:
    for (size_t i = 0; i < 4; i++)
        bags_buffer_free(&buffers[i]);
    return 0;
}
