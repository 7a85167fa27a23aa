/*
 * Convert msgpack to JSON and back, if formats/msgpack.c was linked.
 */
#include "command.h"

#include "formats.h"
#include "modules.h"

#ifdef BAGS_WITH_MSGPACK
#include "pack.h"

bool msgpack_to_json(const void *object, text *out) {
    static bags_buffer scratch;
    bags_view json;
    bags_code code =
        bags_msgpack_print((const msgpack_object *)object, &scratch, &json, &failure);
    if (code == BAGS_ERROR_MEMORY)
        die();
    if (code)
        return false;
    text_json_clean(out, json);
    return true;
}

static int write_packed(void *data, const char *bytes, size_t size) {
    text_put((text *)data, bytes, size);
    return 0;
}

bags_view msgpack_from_json(json_object *value, bags_buffer *out) {
    text into = {*out, 0};
    msgpack_packer packer;
    msgpack_packer_init(&packer, &into, write_packed);
    bags_import_pack(&packer, value); /* write_packed ends the program if it fails */
    *out = into.buffer;
    bags_view blob = {out->data, into.size};
    return blob;
}

#else

bool msgpack_to_json(const void *object, text *out) {
    (void)object;
    (void)out;
    failure.code = BAGS_ERROR_TYPE;
    return false;
}

bags_view msgpack_from_json(json_object *value, bags_buffer *out) {
    bags_view none = {NULL, 0};
    (void)value;
    (void)out;
    codec_check("msgpack");
    return none;
}

#endif
