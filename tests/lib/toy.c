/* See toy.h. */
#include "toy.h"

typedef struct toy_state {
    toy *user;
    bool starts; /* a writer has it */
    uint64_t values;
    unsigned sum; /* of the bytes of those that are held */
    unsigned char own[1024];
    size_t size; /* of `own`; 0: none */
} toy_state;

static bags_code toy_open(const bags_codec *codec, const bags_type *type,
    const bags_allocator *allocator, void **state, bags_error *err) {
    (void)type;
    toy_state *s =
        (toy_state *)allocator->resize(allocator->user, NULL, 0, sizeof *s + 64);
    if (!s)
        return bags_fail(err, BAGS_ERROR_MEMORY, "no memory for a toy");
    memset(s, 0, sizeof *s);
    memcpy(s + 1, allocator, sizeof *allocator);
    s->user = (toy *)codec->user;
    *state = s;
    return BAGS_OK;
}

static void toy_close(void *state) {
    toy_state *s = (toy_state *)state;
    bags_allocator own;
    memcpy(&own, s + 1, sizeof own);
    own.resize(own.user, s, sizeof *s + 64, 0);
}

static void toy_make(toy_state *s, unsigned number) {
    s->size = TOY_SIZE;
    fill(s->own, s->size, number);
    s->own[0] = (unsigned char)number;
}

static bags_code toy_encode(void *state, const bags_value *value, bags_buffer *scratch,
    bags_view *blob, bags_error *err) {
    toy_state *s = (toy_state *)state;
    const unsigned char *from = (const unsigned char *)value->data;
    unsigned sum = 0;
    if (value->kind != BAGS_KIND_BYTES && value->kind != BAGS_KIND_UTF8)
        return bags_fail(err, BAGS_ERROR_VALUE, "not for a toy");
    bags_code code = bags_buffer_reserve(scratch, value->size + 4, err);
    if (code)
        return code;
    for (size_t i = 0; i < value->size; i++)
        sum += from[i];
    bool collects = s->starts && !s->size && !s->user->never;
    bool held = collects && s->user->holds > 0;
    s->values += collects;
    s->sum += sum;
    if (collects && !held && s->values > s->user->after)
        toy_make(s, s->user->after ? 1 + sum % 255 : s->user->number);
    size_t front = s->size ? 2 : held ? 4 : 1;
    memcpy(scratch->data, held ? "held" : "p", held ? 4 : 1);
    if (s->size)
        scratch->data[0] = 'd';
    if (s->size)
        scratch->data[1] = s->own[0];
    for (size_t i = 0; i < value->size; i++)
        scratch->data[front + i] =
            (unsigned char)(from[i] + (s->size ? s->own[i % s->size] : 0));
    blob->data = scratch->data;
    blob->size = front + value->size;
    return BAGS_OK;
}

static bool toy_is_held(bags_view blob) {
    return blob.size >= 4 && !memcmp(blob.data, "held", 4);
}

static bool toy_needed(void *state, bags_view blob) {
    (void)state;
    return blob.size > 0 && blob.data[0] == 'd';
}

static bags_code toy_start(void *state, bags_view content, bags_error *err) {
    toy_state *s = (toy_state *)state;
    s->starts = true;
    s->user->started += content.size > 0;
    if (content.size > sizeof s->own || (content.size && !content.data[0]))
        return bags_fail(err, BAGS_ERROR_CORRUPT, "not the dictionary of a toy");
    if (content.size && !s->user->stubborn) {
        memcpy(s->own, content.data, content.size);
        s->size = content.size;
    }
    return BAGS_OK;
}

static bags_code toy_find(
    void *state, bags_view blob, bags_view *content, bags_error *err) {
    toy_state *s = (toy_state *)state;
    if (!s->size || blob.size < 2 || blob.data[1] != s->own[0])
        return bags_fail(err, BAGS_ERROR_VALUE, "needs toy %u, this is %u",
            blob.size > 1 ? blob.data[1] : 0, s->own[0]);
    content->data = s->own;
    content->size = s->user->size ? s->user->size - 1 : s->size;
    return BAGS_OK;
}

typedef struct toy_prepared {
    size_t size;
    unsigned char bytes[1024];
} toy_prepared;

static bags_code toy_prepare(
    void *state, bags_view content, void **prepared, bags_error *err) {
    toy_state *s = (toy_state *)state;
    if (content.size > sizeof s->own || !content.data[0])
        return bags_fail(err, BAGS_ERROR_CORRUPT, "not the dictionary of a toy");
    toy_prepared *made = (toy_prepared *)malloc(sizeof *made);
    made->size = content.size;
    memcpy(made->bytes, content.data, content.size);
    s->user->prepared++;
    *prepared = made;
    return BAGS_OK;
}

static void toy_discard(void *state, void *prepared) {
    ((toy_state *)state)->user->discarded++;
    free(prepared);
}

static bags_code toy_decode_with(void *state, const void *prepared, bags_view blob,
    bags_buffer *scratch, bags_value *value, bags_error *err) {
    const toy_prepared *with = (const toy_prepared *)prepared;
    size_t front = toy_needed(state, blob) ? 2 : toy_is_held(blob) ? 4 : 1;
    if (blob.size < front || (front == 1 && blob.data[0] != 'p'))
        return bags_fail(err, BAGS_ERROR_CORRUPT, "not of a toy");
    if (front == 2 && !with)
        return bags_fail(err, BAGS_ERROR_CORRUPT, "needs toy %u", blob.data[1]);
    if (front == 2 && blob.data[1] != with->bytes[0])
        return bags_fail(err, BAGS_ERROR_CORRUPT, "needs toy %u, this is %u",
            blob.data[1], with->bytes[0]);
    bags_code code = bags_buffer_reserve(scratch, blob.size, err);
    if (code)
        return code;
    for (size_t i = 0; i + front < blob.size; i++)
        scratch->data[i] =
            (unsigned char)(blob.data[front + i] -
                            (front == 2 ? with->bytes[i % with->size] : 0));
    *value = bags_bytes(scratch->data, blob.size - front);
    return BAGS_OK;
}

static bags_code toy_decode(void *state, bags_view blob, bags_buffer *scratch,
    bags_value *value, bags_error *err) {
    return toy_decode_with(state, NULL, blob, scratch, value, err);
}

static bool toy_holds(void *state) {
    toy_state *s = (toy_state *)state;
    return s->user->holds && s->starts && !s->size && !s->user->never &&
           s->values < s->user->after;
}

static bags_code toy_make_held(void *state, bool *made_one, bags_error *err) {
    toy_state *s = (toy_state *)state;
    if (s->user->fails)
        return bags_fail(err, BAGS_ERROR_VALUE, "no toy can be made");
    if (!s->size && s->values >= s->user->holds)
        toy_make(s, 1 + s->sum % 255);
    *made_one = s->size > 0;
    return BAGS_OK;
}

static bags_code toy_recode(void *state, bags_view blob, bags_buffer *scratch,
    bags_view *out, bags_error *err) {
    toy_state *s = (toy_state *)state;
    *out = blob;
    if (!s->size || !toy_is_held(blob))
        return BAGS_OK;
    bags_code code = bags_buffer_reserve(scratch, blob.size, err);
    if (code)
        return code;
    scratch->data[0] = 'd';
    scratch->data[1] = s->own[0];
    for (size_t i = 4; i < blob.size; i++)
        scratch->data[i - 2] =
            (unsigned char)(blob.data[i] + s->own[(i - 4) % s->size]);
    out->data = scratch->data;
    out->size = blob.size - 2;
    return BAGS_OK;
}

bags_codec toy_codec(const char *names, toy *user) {
    static const bags_codec_dictionary with = {toy_needed, toy_start, toy_find,
        toy_prepare, toy_discard, toy_decode_with, toy_holds, toy_make_held,
        toy_recode};
    bags_codec codec = {
        names, toy_open, toy_encode, toy_decode, toy_close, user, &with};
    return codec;
}

bags_registry *toy_registry(toy *user) {
    bags_codec codec = toy_codec("utf8", user);
    bags_registry *registry = bags_registry_create(NULL, NULL);
    if (!registry || bags_registry_add(registry, &codec, NULL))
        abort();
    return registry;
}
