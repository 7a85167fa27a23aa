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

bags_view msgpack_from_json(json_object *value, bags_buffer *out) {
    bags_import_packed packed = {out, 0, &failure};
    msgpack_packer packer;
    msgpack_packer_init(&packer, &packed, bags_import_packed_write);
    if (bags_import_pack(&packer, value))
        die();
    bags_view blob = {out->data, packed.size};
    return blob;
}

bags_code (*const msgpack_pack)(
    bags_view, bags_buffer *, bags_view *, bags_error *) = bags_import_pack_json;

#else

bags_code (*const msgpack_pack)(
    bags_view, bags_buffer *, bags_view *, bags_error *) = NULL;

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
