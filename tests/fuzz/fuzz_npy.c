/*
 * Any bytes as a .npy file: read, look at every byte of what comes out, write
 * it, and read that again, which must then give the same file.
 */
// flavours: test: asan
#include "../../bags.h"
#include "../../formats/formats.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned seen;

static void look(const void *data, size_t size) {
    const unsigned char *bytes = (const unsigned char *)data;
    unsigned sum = 0;
    for (size_t i = 0; i < size; i++)
        sum += bytes[i];
    seen += sum;
}

static void look_at_type(const bags_npy_type *type, size_t room) {
    if (type->offset > room || type->size > room - type->offset)
        abort();
    look(type->name, strlen(type->name));
    look(type->unit, strlen(type->unit));
    if (type->title)
        look(type->title, strlen(type->title));
    look(type->shape, type->dims * sizeof *type->shape);
    for (size_t i = 0; i < type->count; i++) {
        const bags_npy_type *field = &type->fields[i];
        look_at_type(field, type->item_size);
        for (size_t k = 0; k < i && i < 64; k++)
            if (strcmp(type->fields[k].name, field->name) == 0)
                abort();
    }
}

static void look_at_value(const bags_value *value) {
    if (value->kind == BAGS_KIND_ARRAY) {
        look(value->shape, value->dims * sizeof *value->shape);
        look(value->data, value->size);
        if ((uintptr_t)value->data % bags_dtype_size(value->dtype))
            abort();
        return;
    }
    const bags_npy *npy = (const bags_npy *)value->object;
    look(npy->shape, npy->dims * sizeof *npy->shape);
    look(npy->rows, npy->size);
    look_at_type(&npy->type, npy->stride);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bags_buffer buffers[3];
    bags_view file = {data, size}, first, second;
    bags_value value;
    memset(buffers, 0, sizeof buffers);
    if (bags_npy_read(file, &buffers[0], &value, NULL))
        goto done;
    look_at_value(&value);
    /* The text of a header may grow when it is written, above its limit. */
    if (bags_npy_write(&value, &buffers[1], &first, NULL))
        goto done;
    if (bags_npy_read(first, &buffers[0], &value, NULL))
        abort();
    look_at_value(&value);
    if (bags_npy_write(&value, &buffers[2], &second, NULL) ||
        first.size != second.size || memcmp(first.data, second.data, first.size) != 0)
        abort();
done:
    for (size_t i = 0; i < 3; i++)
        bags_buffer_free(&buffers[i]);
    return 0;
}
