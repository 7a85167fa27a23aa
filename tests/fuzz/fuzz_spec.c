/*
 * Any bytes as a spec.json. A second reader of the format, written here as simply
 * as possible, must accept the same files and find the same fields; and a writer
 * with those fields must write what Python's json.dumps would write.
 */
// flavours: test: asan
#include "support.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FIELDS_MOST 300
#define FIELDS_WRITTEN 12

static void demand(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    abort();
}

/* ---- a second reader ---- */

typedef struct text {
    uint32_t *points;
    size_t size;
} text;

typedef struct spec {
    text names[FIELDS_MOST], types[FIELDS_MOST];
    size_t count;
    const uint8_t *at, *end;
} spec;

/* The first code point of UTF-8 text; above U+10FFFF if it is invalid. */
static uint32_t take_point(spec *s) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t point = *s->at;
    size_t length = point < 0x80    ? 1
                    : point >= 0xF8 ? 0
                    : point >= 0xF0 ? 4
                    : point >= 0xE0 ? 3
                    : point >= 0xC0 ? 2
                                    : 0;
    if (length == 0 || length > (size_t)(s->end - s->at))
        return UINT32_MAX;
    if (length > 1)
        point &= 0x7Fu >> length;
    for (size_t i = 1; i < length; i++) {
        if (s->at[i] >> 6 != 2)
            return UINT32_MAX;
        point = point * 64 + (s->at[i] & 63u);
    }
    s->at += length;
    bool surrogate = point >> 11 == 0xD800 >> 11;
    return point < least[length] || surrogate ? UINT32_MAX : point;
}

static uint32_t take_hex(spec *s) {
    uint32_t number = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef0123456789ABCDEF";
        const char *digit = s->at < s->end && *s->at ? strchr(digits, *s->at) : NULL;
        if (!digit)
            return UINT32_MAX;
        number = number * 16 + (uint32_t)(digit - digits) % 16;
        s->at++;
    }
    return number;
}

static uint32_t take_escape(spec *s) {
    static const char names[] = "\"\\/bfnrt", points[] = "\"\\/\b\f\n\r\t";
    if (s->at == s->end || !*s->at)
        return UINT32_MAX;
    const char *name = strchr(names, *s->at);
    if (*s->at++ != 'u')
        return name ? (uint32_t)points[name - names] : UINT32_MAX;
    uint32_t point = take_hex(s);
    if (point >> 11 != 0xD800 >> 11)
        return point;
    /* One half of a surrogate pair, of which the high one comes first. */
    if (point >= 0xDC00 || s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u')
        return UINT32_MAX;
    s->at += 2;
    uint32_t low = take_hex(s);
    if (low < 0xDC00 || low > 0xDFFF)
        return UINT32_MAX;
    return 0x10000 + (point - 0xD800) * 0x400 + low - 0xDC00;
}

static bool take_string(spec *s, text *out) {
    out->points =
        (uint32_t *)malloc(((size_t)(s->end - s->at) + 1) * sizeof *out->points);
    out->size = 0;
    if (s->at == s->end || *s->at++ != '"')
        return false;
    while (s->at < s->end && *s->at != '"') {
        bool escaped = *s->at == '\\';
        if (*s->at < 0x20)
            return false;
        s->at += escaped;
        uint32_t point = escaped ? take_escape(s) : take_point(s);
        if (point > 0x10FFFF || point == 0)
            return false;
        out->points[out->size++] = point;
    }
    return s->at < s->end && *s->at++ == '"';
}

static void take_space(spec *s) {
    while (s->at < s->end &&
           (*s->at == ' ' || *s->at == '\t' || *s->at == '\r' || *s->at == '\n'))
        s->at++;
}

static bool take_mark(spec *s, char mark) {
    take_space(s);
    bool there = s->at < s->end && *s->at == (uint8_t)mark;
    s->at += there;
    return there;
}

static bool is_before(const text *a, const text *b) {
    size_t i = 0;
    while (i < a->size && i < b->size && a->points[i] == b->points[i])
        i++;
    return i < b->size && (i == a->size || a->points[i] < b->points[i]);
}

static bool is_text(const text *a, const char *other) {
    size_t i = 0;
    while (i < a->size && other[i] && a->points[i] == (uint32_t)other[i])
        i++;
    return i == a->size && !other[i];
}

static bool has(const text *a, const char *any) {
    for (size_t i = 0; i < a->size; i++)
        if (a->points[i] < 0x80 && strchr(any, (int)a->points[i]))
            return true;
    return false;
}

#define NAME "abcdefghijklmnopqrstuvwxyz0123456789-_"

/* [a-z0-9-_]+ or [a-z0-9-_]+([a-z0-9-_,.]*), and then perhaps []. */
static bool is_type(const text *a) {
    size_t size = a->size, name = 0;
    if (size >= 2 && a->points[size - 2] == '[' && a->points[size - 1] == ']')
        size -= 2;
    for (; name < size && a->points[name] < 0x80 && strchr(NAME, (int)a->points[name]);
         name++)
        ;
    if (name == 0 || name == size)
        return name > 0;
    if (a->points[name] != '(' || size < name + 2 || a->points[size - 1] != ')')
        return false;
    for (size_t i = name + 1; i < size - 1; i++)
        if (a->points[i] >= 0x80 || !strchr(NAME ",.", (int)a->points[i]))
            return false;
    return true;
}

static bool take_spec(spec *s) {
    if (!take_mark(s, '{'))
        return false;
    while (!take_mark(s, '}')) {
        if (s->count && !take_mark(s, ','))
            return false;
        text *name = &s->names[s->count], *type = &s->types[s->count];
        s->count++;
        take_space(s);
        if (!take_string(s, name) || !take_mark(s, ':'))
            return false;
        take_space(s);
        if (!take_string(s, type) || !is_type(type) || is_text(name, "refs") ||
            has(name, "/"))
            return false;
        if (s->count > 1 && !is_before(name - 1, name))
            return false;
    }
    take_space(s);
    return s->at == s->end;
}

static void spec_free(spec *s) {
    for (size_t i = 0; i < s->count; i++) {
        free(s->names[i].points);
        free(s->types[i].points);
    }
    free(s);
}

static bool is_same(const text *a, const char *other) {
    spec s;
    s.at = (const uint8_t *)other;
    s.end = s.at + strlen(other);
    for (size_t i = 0; i < a->size; i++)
        if (s.at == s.end || take_point(&s) != a->points[i])
            return false;
    return s.at == s.end;
}

/* ---- a second writer ---- */

static void put_string(bytes *to, const text *string) {
    put_u8(to, '"');
    for (size_t i = 0; i < string->size; i++) {
        uint32_t point = string->points[i];
        if (point > 0xFFFF)
            put_format(to, "\\u%04x\\u%04x",
                (unsigned)(0xD800 + (point - 0x10000) / 0x400),
                (unsigned)(0xDC00 + (point - 0x10000) % 0x400));
        else if (point > 0x7E)
            put_format(to, "\\u%04x", (unsigned)point);
        else
            put_u8(to, point);
    }
    put_u8(to, '"');
}

static bytes print_spec(const spec *s) {
    bytes out = {NULL, 0, 0};
    put_u8(&out, '{');
    for (size_t i = 0; i < s->count; i++) {
        put_text(&out, i ? ", " : "");
        put_string(&out, &s->names[i]);
        put_text(&out, ": ");
        put_string(&out, &s->types[i]);
    }
    put_u8(&out, '}');
    return out;
}

static bool is_device(const text *name) {
    static const char *const devices[] = {"con", "prn", "aux", "nul", "com", "lpt"};
    text stem = {name->points, 0};
    char low[8] = "";
    while (stem.size < name->size && name->points[stem.size] != '.')
        stem.size++;
    while (stem.size && stem.points[stem.size - 1] == ' ')
        stem.size--;
    for (size_t i = 0; i < stem.size && i < 7; i++) {
        uint32_t c = stem.points[i] < 0x80 ? stem.points[i] : '?';
        low[i] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    for (size_t i = 0; i < 6; i++)
        if (memcmp(low, devices[i], 3) == 0 &&
            (i < 4 ? stem.size == 3 : stem.size == 4 && low[3] >= '1' && low[3] <= '9'))
            return true;
    return false;
}

/* True if a writer accepts a name that a reader accepts. */
static bool is_written(const text *name) {
    size_t size = 0;
    for (size_t i = 0; i < name->size; i++) {
        uint32_t point = name->points[i];
        if (point < 0x20 || point == 0x7F)
            return false;
        size += point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    }
    return size > 0 && size <= 251 && name->points[0] != '.' &&
           !has(name, "\\:*?\"<>|") && !is_device(name);
}

/* ---- the comparison ---- */

static void check_written(const spec *s, const bags_field *fields, memory_disk *m) {
    bags_field backwards[FIELDS_WRITTEN];
    bags_writer_options options;
    bags_error err;
    bool right = true, arguments = false; /* which a built-in type may refuse */
    if (s->count > FIELDS_WRITTEN)
        return;
    for (size_t i = 0; i < s->count; i++) {
        backwards[i] = fields[s->count - 1 - i];
        right = right && is_written(&s->names[i]);
        arguments = arguments || strchr(fields[i].type, '(');
    }
    memset(&options, 0, sizeof options);
    options.env.io = &m->io;
    options.buffer_size = 4096;
    options.any_type = true;
    bags_writer *writer = bags_writer_open("y", backwards, s->count, &options, &err);
    if (right && !writer && arguments) {
        demand(err.code == BAGS_ERROR_TYPE, "a type is refused with another code");
        return;
    }
    demand(right == (writer != NULL), "a writer takes other names");
    if (!writer) {
        demand(err.code == BAGS_ERROR_FIELD, "a writer gives another code");
        return;
    }
    demand(!bags_writer_close(writer, &err), "close fails");
    bytes wanted = print_spec(s);
    bags_view found = memory_disk_find(m, "y/spec.json");
    demand(
        found.size == wanted.size && memcmp(found.data, wanted.data, found.size) == 0,
        "a spec is written otherwise than by json.dumps");
    bytes_free(&wanted);
}

static bags_reader *open_spec(memory_disk *m, const char *path, bags_error *err) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.env.io = &m->io;
    return bags_reader_open(path, &options, err);
}

static void check_accepted(const spec *s, const bags_reader *reader, memory_disk *m) {
    size_t count = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    demand(count == s->count, "another number of fields");
    for (size_t i = 0; i < count; i++) {
        size_t place = count;
        demand(is_same(&s->names[i], fields[i].name), "another name");
        demand(is_same(&s->types[i], fields[i].type), "another type");
        demand(!bags_reader_field(reader, fields[i].name, &place, NULL) && place == i,
            "a field is not found by its name");
    }
    check_written(s, fields, m);
}

static void check_refused(const bags_error *err) {
    demand(err->code == BAGS_ERROR_CORRUPT || err->code == BAGS_ERROR_FIELD ||
               err->code == BAGS_ERROR_TYPE,
        "another code");
    demand(strncmp(err->message, "x/spec.json: ", 13) == 0,
        "a message that does not name the file");
    for (const char *c = err->message; *c; c++)
        demand(
            (unsigned char)*c >= 0x20 && *c != 0x7F, "a message of more than a line");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    memory_disk m;
    bags_error err;
    if (size > 4 * FIELDS_MOST)
        return 0; /* a field needs more than four bytes */
    spec *s = (spec *)calloc(1, sizeof *s);
    s->at = data;
    s->end = data + size;
    bool right = take_spec(s);
    memory_disk_start(&m);
    memory_disk_save(&m, "x/spec.json", data, size);
    memory_disk_save(&m, "x/refs.bag", "\0\0\0\0\0\0\0\0", 8);
    bags_reader *reader = open_spec(&m, "x", &err);
    demand(right || !reader, "a wrong spec is accepted");
    demand(!right || reader, "a right spec is refused");
    if (reader)
        check_accepted(s, reader, &m);
    else
        check_refused(&err);
    bags_reader_close(reader);
    memory_disk_free(&m);
    spec_free(s);
    return 0;
}
