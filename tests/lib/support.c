/* See support.h. This file and the tests need POSIX, or mingw.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#define _FILE_OFFSET_BITS 64
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- checks ---- */

/* Ends the program if something that the tests rely on fails. */
static void must(bool done, const char *what, const char *path) {
    if (done)
        return;
    fprintf(stderr, "%s %s: %s\n", what, path, strerror(errno));
    abort();
}

bags_error said;

#define POISON_CODE 31 /* in C++, the last that a bags_code can have */

void poison(void) {
    memset(&said, 0x5a, sizeof said);
    said.code = (bags_code)POISON_CODE;
}

static bool one_line_of_utf8(const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    size_t size = strnlen(text, BAGS_ERROR_SIZE);
    if (size == 0 || size == BAGS_ERROR_SIZE)
        return false;
    for (size_t i = 0; i < size;) {
        unsigned char c = at[i++];
        int more = c < 0x80 ? 0 : c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
        if (c < 0x20 || c == 0x7f || (c >= 0x80 && c < 0xc2) || c > 0xf4)
            return false;
        while (more--)
            if ((at[i++] & 0xc0) != 0x80)
                return false;
    }
    return true;
}

/* Prints what is wrong. Returns false. */
BAGI_PRINTF(1, 2) static bool wrong(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    return false;
}

static bool said_so(int expected, const char *call) {
    if ((int)said.code != expected)
        return wrong("%s\n  error code %d (%s), expected %d (%s): %.200s\n", call,
            (int)said.code, bags_code_name(said.code), expected,
            bags_code_name((bags_code)expected), said.message);
    if (!one_line_of_utf8(said.message))
        return wrong(
            "%s\n  the message is no line of UTF-8: %.300s\n", call, said.message);
    return true;
}

static bool said_nothing(const char *call) {
    if ((int)said.code == POISON_CODE)
        return true;
    return wrong("%s\n  succeeded, and wrote the error\n", call);
}

bool is_code(int expected, int code, const char *call) {
    if (code != expected)
        return wrong("%s\n  returned %d (%s), expected %d (%s): %.300s\n", call, code,
            bags_code_name((bags_code)code), expected,
            bags_code_name((bags_code)expected), code ? said.message : "(no error)");
    return code ? said_so(expected, call) : said_nothing(call);
}

bool is_open(bool opened, const char *call) {
    if (!opened)
        return wrong("%s\n  failed (%s): %.500s\n", call, bags_code_name(said.code),
            said.message);
    return said_nothing(call);
}

bool is_refused(int expected, const void *object, const char *call) {
    if (object)
        return wrong("%s\n  was accepted\n", call);
    return said_so(expected, call);
}

bool contains(const char *text, const char *pattern) {
    while (*pattern) {
        size_t size = strcspn(pattern, "*");
        while (*text && strncmp(text, pattern, size) != 0)
            text++;
        if (strncmp(text, pattern, size) != 0)
            return false;
        text += size;
        pattern += size;
        pattern += *pattern == '*';
    }
    return true;
}

bool is_said(const char *pattern) {
    if (contains(said.message, pattern))
        return true;
    return wrong(
        "the message does not contain \"%s\": %.500s\n", pattern, said.message);
}

bool is_bytes(bags_view view, const void *expected, size_t size) {
    if (view.size != size)
        return wrong("%zu bytes, expected %zu\n", view.size, size);
    if (size && memcmp(view.data, expected, size) != 0)
        return wrong("other bytes: \"%.*s\", expected \"%.*s\"\n",
            size > 60 ? 60 : (int)size, (const char *)view.data,
            size > 60 ? 60 : (int)size, (const char *)expected);
    return true;
}

/* ---- bytes ---- */

void put(bytes *to, const void *data, size_t size) {
    if (to->size + size > to->capacity) {
        to->capacity = (to->size + size) * 2;
        to->data = (unsigned char *)realloc(to->data, to->capacity);
        must(to->data != NULL, "realloc", "");
    }
    if (size)
        memcpy(to->data + to->size, data, size);
    to->size += size;
}

void put_u8(bytes *to, unsigned value) {
    unsigned char byte = (unsigned char)value;
    put(to, &byte, 1);
}

void put_u64(bytes *to, uint64_t value) {
    for (int i = 0; i < 8; i++)
        put_u8(to, (unsigned)(value >> (8 * i)) & 255);
}

bool little_endian(void) {
    const uint16_t one = 1;
    return *(const unsigned char *)&one == 1;
}

void turn_elements(void *data, size_t size, size_t element) {
    unsigned char *first = (unsigned char *)data;
    if (little_endian())
        return;
    for (size_t at = 0; at < size; at += element)
        for (size_t i = at, j = at + element - 1; i < j; i++, j--) {
            unsigned char byte = first[i];
            first[i] = first[j];
            first[j] = byte;
        }
}

void put_text(bytes *to, const char *text) { put(to, text, strlen(text)); }

void put_format(bytes *to, const char *format, ...) {
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    must(size >= 0 && (size_t)size < sizeof text, "vsnprintf", format);
    put(to, text, (size_t)size);
}

void bytes_free(bytes *b) {
    free(b->data);
    memset(b, 0, sizeof *b);
}

uint64_t load_u64(const unsigned char *data) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--)
        value = value << 8 | data[i];
    return value;
}

static void put_big(bytes *to, uint64_t value, int size) {
    for (int i = size - 1; i >= 0; i--)
        put_u8(to, (unsigned)(value >> (8 * i)) & 255);
}

void put_tagged(bytes *to, unsigned tag, uint64_t value) {
    put_u8(to, tag);
    put_big(to, value, 1 << ((tag - 0xcc) & 3));
}

void put_array(bytes *to, size_t length) {
    if (length < 16) {
        put_u8(to, 0x90 + (unsigned)length);
    } else if (length < 65536) {
        put_u8(to, 0xdc);
        put_big(to, length, 2);
    } else {
        put_u8(to, 0xdd);
        put_big(to, length, 4);
    }
}

void put_uint(bytes *to, uint64_t value) {
    if (value < 128)
        put_u8(to, (unsigned)value);
    else if (value < 1u << 8)
        put_tagged(to, 0xcc, value);
    else if (value < 1u << 16)
        put_tagged(to, 0xcd, value);
    else if (value < (uint64_t)1 << 32)
        put_tagged(to, 0xce, value);
    else
        put_tagged(to, 0xcf, value);
}

uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void fill(void *data, size_t size, uint64_t seed) {
    unsigned char *to = (unsigned char *)data;
    uint64_t state = seed * 7919 + 1;
    for (size_t i = 0; i < size; i += 8) {
        uint64_t word = next_random(&state);
        memcpy(to + i, &word, size - i < 8 ? size - i : 8);
    }
}

/* SHA-256, as FIPS 180-4 describes it. */

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static const uint32_t sha256_constants[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf,
    0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01,
    0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1,
    0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351,
    0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb,
    0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
    0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814,
    0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static void sha256_mix(sha256 *s, const unsigned char *block) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) +
               (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, s->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t t = v[7] + (rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25)) +
                     ((v[4] & v[5]) ^ (~v[4] & v[6])) + sha256_constants[i] + w[i];
        uint32_t u = (rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22)) +
                     ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t;
        v[0] = t + u;
    }
    for (int i = 0; i < 8; i++)
        s->state[i] += v[i];
}

void sha256_start(sha256 *s) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->state, start, sizeof start);
    s->size = 0;
}

void sha256_add(sha256 *s, const void *data, size_t size) {
    const unsigned char *from = (const unsigned char *)data;
    while (size) {
        size_t used = s->size % 64;
        size_t part = 64 - used < size ? 64 - used : size;
        memcpy(s->block + used, from, part);
        s->size += part;
        from += part;
        size -= part;
        if (s->size % 64 == 0)
            sha256_mix(s, s->block);
    }
}

void sha256_hex(sha256 *s, char hex[65]) {
    static const unsigned char pad[64] = {0x80};
    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)(s->size * 8 >> (56 - 8 * i));
    sha256_add(s, pad, 1 + (119 - s->size % 64) % 64);
    sha256_add(s, length, 8);
    for (int i = 0; i < 8; i++)
        snprintf(hex + 8 * i, 9, "%08x", (unsigned)s->state[i]);
}

/* ---- files ---- */

#define PATH_MOST 4096

static char scratch[PATH_MOST];

const char *at(const char *format, ...) {
    static char ring[32][PATH_MOST];
    static unsigned next;
    char *path = ring[next++ % 32];
    size_t used = (size_t)snprintf(path, PATH_MOST, "%s/", scratch);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path + used, PATH_MOST - used, format, arguments);
    va_end(arguments);
    return path;
}

bool exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

void make_dir(const char *path) { must(mkdir(path, 0777) == 0, "mkdir", path); }

void save(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    must(file != NULL, "fopen", path);
    must(fwrite(data ? data : "", 1, size, file) == size, "fwrite", path);
    must(fclose(file) == 0, "fclose", path);
}

void save_text(const char *path, const char *text) { save(path, text, strlen(text)); }

bytes load(const char *path) {
    bytes content = {NULL, 0, 0};
    unsigned char block[65536];
    size_t got;
    FILE *file = fopen(path, "rb");
    must(file != NULL, "fopen", path);
    while ((got = fread(block, 1, sizeof block, file)) > 0)
        put(&content, block, got);
    must(!ferror(file), "fread", path);
    fclose(file);
    return content;
}

uint64_t file_size(const char *path) {
    struct stat info;
    must(stat(path, &info) == 0, "stat", path);
    return (uint64_t)info.st_size;
}

void resize_file(const char *path, uint64_t size) {
    FILE *file = fopen(path, "r+b");
    must(file != NULL, "fopen", path);
    must(ftruncate(fileno(file), (off_t)size) == 0, "ftruncate", path);
    must(fclose(file) == 0, "fclose", path);
}

/* The names in a directory, sorted; NULL ends the array. Free with
 * free_names. */
static char **read_names(const char *path) {
    struct dirent **found;
    int count = scandir(path, &found, NULL, alphasort);
    must(count >= 0, "scandir", path);
    char **names = (char **)calloc(count > 0 ? (size_t)count + 1 : 1, sizeof *names);
    must(names != NULL, "calloc", path);
    size_t kept = 0;
    for (int i = 0; i < count; i++) {
        const char *name = found[i]->d_name;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            names[kept++] = strdup(name);
        free(found[i]);
    }
    free(found);
    return names;
}

static void free_names(char **names) {
    for (size_t i = 0; names[i]; i++)
        free(names[i]);
    free(names);
}

static bool is_dir(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static char *join(const char *directory, const char *name) {
    size_t size = strlen(directory) + strlen(name) + 2;
    char *path = (char *)malloc(size);
    must(path != NULL, "malloc", directory);
    snprintf(path, size, "%s/%s", directory, name);
    return path;
}

void remove_tree(const char *path) {
    if (!is_dir(path)) {
        must(unlink(path) == 0, "unlink", path);
        return;
    }
    char **names = read_names(path);
    for (size_t i = 0; names[i]; i++) {
        char *inner = join(path, names[i]);
        remove_tree(inner);
        free(inner);
    }
    free_names(names);
    must(rmdir(path) == 0, "rmdir", path);
}

void copy_tree(const char *from, const char *to) {
    if (!is_dir(from)) {
        bytes content = load(from);
        save(to, content.data, content.size);
        bytes_free(&content);
        return;
    }
    make_dir(to);
    char **names = read_names(from);
    for (size_t i = 0; names[i]; i++) {
        char *source = join(from, names[i]), *target = join(to, names[i]);
        copy_tree(source, target);
        free(source);
        free(target);
    }
    free_names(names);
}

char *names_in(const char *path) {
    bytes text = {NULL, 0, 0};
    char **names = read_names(path);
    for (size_t i = 0; names[i]; i++)
        put_format(&text, "%s%s", i ? " " : "", names[i]);
    free_names(names);
    put_u8(&text, 0);
    return (char *)text.data;
}

bool is_names(const char *path, const char *names) {
    char *found = names_in(path);
    bool same = strcmp(found, names) == 0;
    if (!same)
        wrong("%s has \"%s\", expected \"%s\"\n", path, found, names);
    free(found);
    return same;
}

bool is_file(const char *path, const void *expected, size_t size) {
    bytes content = load(path);
    bool same =
        content.size == size && (!size || memcmp(content.data, expected, size) == 0);
    if (!same)
        wrong("%s has other bytes: %zu, expected %zu\n", path, content.size, size);
    bytes_free(&content);
    return same;
}

static bool is_same_directory(const char *a, const char *b) {
    char *names = names_in(a);
    bool same = is_names(b, names);
    free(names);
    char **each = read_names(a);
    for (size_t i = 0; each[i] && same; i++) {
        char *left = join(a, each[i]), *right = join(b, each[i]);
        same = is_same_tree(left, right);
        free(left);
        free(right);
    }
    free_names(each);
    return same;
}

bool is_same_tree(const char *a, const char *b) {
    if (is_dir(a))
        return is_same_directory(a, b);
    bytes content = load(a);
    bool same = is_file(b, content.data, content.size);
    bytes_free(&content);
    return same;
}

/* ---- Bags and datasets by hand ---- */

void hand_add(hand_bag *bag, const void *data, size_t size) {
    put(&bag->blobs, data, size);
    put_u64(&bag->ends, bag->blobs.size);
}

uint64_t hand_length(const hand_bag *bag) { return bag->ends.size / 8; }

bytes hand_bytes(const hand_bag *bag, enum variant variant) {
    bytes file = {NULL, 0, 0};
    put(&file, bag->blobs.data, bag->blobs.size);
    if (variant == V1)
        put_u64(&file, 0);
    if (variant != SPLIT)
        put(&file, bag->ends.data, bag->ends.size);
    return file;
}

/* Writes a file for hand_save_by and set_save_by; to the real disk if `to` is
 * NULL. */
static void save_by(memory_disk *to, const char *directory, const char *name,
    const char *ending, const bytes *content) {
    char path[PATH_MOST];
    snprintf(path, sizeof path, "%s/%s%s", directory, name, ending);
    if (to)
        memory_disk_save(to, path, content->data, content->size);
    else
        save(path, content->data, content->size);
}

static void hand_save_by(memory_disk *to, const hand_bag *bag, enum variant variant,
    const char *directory, const char *name) {
    bytes file = hand_bytes(bag, variant);
    save_by(to, directory, name, ".bag", &file);
    bytes_free(&file);
    if (variant == SPLIT)
        save_by(to, directory, name, ".idx", &bag->ends);
}

void hand_save(const hand_bag *bag, enum variant variant, const char *directory,
    const char *name) {
    hand_save_by(NULL, bag, variant, directory, name);
}

void hand_free(hand_bag *bag) {
    bytes_free(&bag->blobs);
    bytes_free(&bag->ends);
}

void set_field(hand_set *set, const char *name, const char *type) {
    must(set->count < HAND_FIELDS, "one more field", name);
    set->names[set->count] = name;
    set->types[set->count++] = type;
}

void set_begin(hand_set *set) {
    set->row.size = 0;
    put_array(&set->row, set->count);
}

void set_blob(hand_set *set, size_t field, const void *data, size_t size) {
    put_uint(&set->row, hand_length(&set->bags[field]));
    hand_add(&set->bags[field], data, size);
}

void set_text(hand_set *set, size_t field, const char *text) {
    set_blob(set, field, text, strlen(text));
}

void set_items(hand_set *set, size_t field, const char *prefix, size_t count) {
    put_array(&set->row, count ? 2 : 0);
    if (count) {
        put_uint(&set->row, hand_length(&set->bags[field]));
        put_uint(&set->row, count);
    }
    for (size_t i = 0; i < count; i++) {
        char item[64];
        snprintf(item, sizeof item, "%s%zu", prefix, i);
        hand_add(&set->bags[field], item, strlen(item));
    }
}

void set_end(hand_set *set) { hand_add(&set->refs, set->row.data, set->row.size); }

static void set_save_by(
    memory_disk *to, const hand_set *set, enum variant variant, const char *path) {
    bytes spec = {NULL, 0, 0};
    put_text(&spec, "{");
    for (size_t i = 0; i < set->count; i++) {
        put_format(
            &spec, "%s\"%s\": \"%s\"", i ? ", " : "", set->names[i], set->types[i]);
        hand_save_by(to, &set->bags[i], variant, path, set->names[i]);
    }
    put_text(&spec, "}");
    save_by(to, path, "spec", ".json", &spec);
    bytes_free(&spec);
    if (variant != SPLIT)
        hand_save_by(to, &set->refs, variant, path, "refs");
}

void set_save(const hand_set *set, enum variant variant, const char *path) {
    make_dir(path);
    set_save_by(NULL, set, variant, path);
}

void memory_disk_save_set(
    memory_disk *m, const hand_set *set, enum variant variant, const char *path) {
    memory_disk_make_dir(m, path);
    set_save_by(m, set, variant, path);
}

void set_free(hand_set *set) {
    for (size_t i = 0; i < HAND_FIELDS; i++)
        hand_free(&set->bags[i]);
    hand_free(&set->refs);
    bytes_free(&set->row);
    memset(set, 0, sizeof *set);
}

/* ---- readers ---- */

bags_code verify_path(const char *path, const bags_env *env, bags_error *err) {
    bags_verify_options options;
    memset(&options, 0, sizeof options);
    options.allow_gaps = true;
    options.allow_empty_file = true;
    options.unfinished = BAGS_UNFINISHED_SKIP;
    if (env)
        options.env = *env;
    return bags_verify(path, &options, NULL, err);
}

bags_code read_dataset(const char *path, const bags_reader_options *options) {
    bags_reader *reader = bags_reader_open(path, options, &said);
    if (!reader)
        return said.code;
    bags_row row = {0};
    bags_code code = verify_path(path, &options->env, &said);
    for (uint64_t i = 0; !code && i < bags_reader_length(reader); i++)
        code = bags_reader_get(reader, i, NULL, 0, &row, &said);
    bags_row_free(&row);
    bags_reader_close(reader);
    return code;
}

bags_code copy_flushed(const char *from, const char *to, bool checksums,
    const bags_io *io, uint64_t *length, bags_error *err) {
    bag_reader_options reading;
    bag_writer_options writing;
    bags_buffer buffer = {0};
    bags_view blob;
    memset(&reading, 0, sizeof reading);
    memset(&writing, 0, sizeof writing);
    reading.unfinished = BAGS_UNFINISHED_READ;
    reading.verify_checksums = writing.checksum = checksums;
    reading.env.io = writing.env.io = io;
    writing.buffer_size = 4096;
    bag_reader *reader = bag_reader_open(from, &reading, err);
    if (!reader)
        return err->code;
    bag_writer *writer = bag_writer_open(to, &writing, err);
    bags_code code = writer ? BAGS_OK : err->code;
    *length = bag_reader_length(reader);
    for (uint64_t i = 0; i < *length && !code; i++) {
        code = bag_reader_get(reader, i, &buffer, &blob, err);
        if (!code)
            code = bag_writer_append(writer, blob.data, blob.size, NULL, err);
    }
    if (!code)
        code = bag_writer_close(writer, err);
    else
        bag_writer_abort(writer);
    bag_reader_close(reader);
    bags_buffer_free(&buffer);
    return code;
}

bags_code recover_path(const char *path, const bags_env *env,
    bags_recover_report *report, bags_error *err) {
    bags_recover_options options;
    memset(&options, 0, sizeof options);
    if (env)
        options.env = *env;
    return bags_recover(path, &options, report, err);
}

bags_info reader_info(const bags_reader *reader) {
    bags_info info;
    bags_error err;
    must(!bags_reader_info(reader, &info, NULL, &err), "describe", "a reader");
    return info;
}

bags_field_info field_info(const bags_reader *reader, size_t field) {
    size_t count = 0;
    bags_info info;
    bags_error err;
    bags_reader_fields(reader, &count);
    must(field < count, "find a field of", "a reader");
    bags_field_info *all = (bags_field_info *)malloc(count * sizeof *all);
    must(all != NULL, "allocate", "field infos");
    must(!bags_reader_info(reader, &info, all, &err), "describe", "a reader");
    bags_field_info one = all[field];
    free(all);
    return one;
}

size_t shard_count(const bags_reader *reader) {
    size_t count = 0;
    bags_reader_shards(reader, &count);
    return count;
}

bags_shard shard_at(const bags_reader *reader, size_t i) {
    size_t count = 0;
    const bags_shard *shards = bags_reader_shards(reader, &count);
    must(i < count, "find a shard of", "a reader");
    return shards[i];
}

/* ---- memory ---- */

/* Each block is preceded by its size, to check the sizes the library passes. */
#define TALLY_HEADER 16

static bool tally_fails(tally *t, size_t size) {
    t->calls++;
    bool now =
        t->fail_at && (t->stays ? t->calls >= t->fail_at : t->calls == t->fail_at);
    if (now)
        t->failed++;
    /* No machine has this much, and the sanitizers terminate a program that
     * requests it. */
    bool absurd = size > SIZE_MAX / 4 || (uint64_t)size >> 36;
    return now || absurd || (t->limit && size > t->limit);
}

/* Fill a block with a pattern that shows in results. The middle of a large block, such as
 * the buffer of a writer, keeps pages that no test touches. */
static void tally_fill(char *block, int pattern, size_t size) {
    const size_t most = (size_t)64 << 10;
    if (size <= 2 * most) {
        memset(block, pattern, size);
        return;
    }
    memset(block, pattern, most);
    memset(block + size - most, pattern, most);
}

static void *tally_locked(tally *t, char *block, size_t old_size, size_t new_size) {
    if (new_size > old_size && tally_fails(t, new_size))
        return NULL;
    if (!new_size) {
        if (block) {
            t->live--;
            t->used -= old_size;
            tally_fill(block, 0xdd, TALLY_HEADER + old_size);
        }
        free(block);
        return NULL;
    }
    /* Always a new address, so that a stale pointer is detected. */
    char *moved = (char *)malloc(TALLY_HEADER + new_size);
    if (!moved)
        return NULL;
    memcpy(moved, &new_size, sizeof new_size);
    tally_fill(moved + TALLY_HEADER, 0xcd, new_size);
    if (block) {
        memcpy(moved + TALLY_HEADER, block + TALLY_HEADER,
            old_size < new_size ? old_size : new_size);
        free(block);
    } else {
        t->live++;
    }
    t->used += new_size - old_size;
    t->peak = t->used > t->peak ? t->used : t->peak;
    return moved + TALLY_HEADER;
}

static void *tally_resize(void *user, void *data, size_t old_size, size_t new_size) {
    tally *t = (tally *)user;
    char *block = data ? (char *)data - TALLY_HEADER : NULL;
    size_t known = 0;
    if (block)
        memcpy(&known, block, sizeof known);
    if (known != old_size) {
        fprintf(stderr, "resize received a size of %zu for a block of %zu\n", old_size,
            known);
        abort();
    }
    pthread_mutex_lock(&t->lock);
    void *result = tally_locked(t, block, old_size, new_size);
    pthread_mutex_unlock(&t->lock);
    return result;
}

void tally_start(tally *t) {
    memset(t, 0, sizeof *t);
    pthread_mutex_init(&t->lock, NULL);
    t->allocator.resize = tally_resize;
    t->allocator.user = t;
}

/* ---- io ---- */

const char *const hook_names[HOOKS] = {"open", "close", "size", "read_at", "write_at",
    "truncate", "sync", "lock", "map", "unmap", "kind", "make_dir", "sync_dir", "list",
    "rename", "remove", "remove_dir", "reserve", "advise", "write_back", "identify",
    "link"};

/* Counts a call. Returns the errno with which it must fail, or 0. */
static int watch_call(watch *w, enum hook hook) {
    int code = 0;
    if (w->before) {
        w->now = hook;
        w->before(w->user);
    }
    pthread_mutex_lock(&w->lock);
    w->counts[hook]++;
    if (!w->only || (w->only >> hook & 1)) {
        w->calls++;
        if (w->fail_at &&
            (w->stays ? w->calls >= w->fail_at : w->calls == w->fail_at)) {
            w->failed++;
            w->last = (int)hook;
            code = w->fail_with;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return code;
}

static void watch_open_files(watch *w, int change) {
    pthread_mutex_lock(&w->lock);
    w->files += change;
    w->peak_files = w->files > w->peak_files ? w->files : w->peak_files;
    pthread_mutex_unlock(&w->lock);
}

/* False if there is one more than allowed. */
static bool watch_open_maps(watch *w, int change) {
    pthread_mutex_lock(&w->lock);
    bool fits = change < 0 || !w->most_maps || w->maps < w->most_maps;
    w->maps += fits ? change : 0;
    w->peak_maps = w->maps > w->peak_maps ? w->maps : w->peak_maps;
    pthread_mutex_unlock(&w->lock);
    return fits;
}

/* An open file; freed by close, so that a later use is detected. */
typedef struct watched {
    void *file;
    bool is_written_bag;
} watched;

static int watch_open(void *user, const char *path, int mode, void **file) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_OPEN);
    if (code)
        return code;
    watched *opened = (watched *)malloc(sizeof *opened);
    if (!opened)
        return ENOMEM;
    code = w->base->open(w->base->user, path, mode, &opened->file);
    if (code) {
        free(opened);
        return code;
    }
    const char *ending = strrchr(path, '.');
    opened->is_written_bag =
        mode != BAGS_IO_READ && ending && strcmp(ending, ".bag") == 0;
    watch_open_files(w, 1);
    *file = opened;
    return 0;
}

/* A close that fails has closed the file anyway. */
static int watch_close(void *user, void *file) {
    watch *w = (watch *)user;
    watched *opened = (watched *)file;
    int code = watch_call(w, HOOK_CLOSE);
    if (code && opened->is_written_bag)
        w->lost_bags++;
    int closed = w->base->close(w->base->user, opened->file);
    watch_open_files(w, -1);
    free(opened);
    return code ? code : closed;
}

static int watch_size(void *user, void *file, uint64_t *size) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_SIZE);
    return code ? code : w->base->size(w->base->user, ((watched *)file)->file, size);
}

static int watch_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_READ);
    pthread_mutex_lock(&w->lock);
    w->most_read = size > w->most_read ? size : w->most_read;
    pthread_mutex_unlock(&w->lock);
    if (w->chunk && size > w->chunk)
        size = w->chunk;
    return code ? code
                : w->base->read_at(
                      w->base->user, ((watched *)file)->file, offset, data, size, done);
}

static int watch_write(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_WRITE);
    if (w->chunk && size > w->chunk)
        size = w->chunk;
    return code ? code
                : w->base->write_at(
                      w->base->user, ((watched *)file)->file, offset, data, size, done);
}

static int watch_truncate(void *user, void *file, uint64_t size) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_TRUNCATE);
    return code ? code
                : w->base->truncate(w->base->user, ((watched *)file)->file, size);
}

static int watch_sync(void *user, void *file) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_SYNC);
    return code ? code : w->base->sync(w->base->user, ((watched *)file)->file);
}

static int watch_lock(void *user, void *file) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_LOCK);
    return code ? code : w->base->lock(w->base->user, ((watched *)file)->file);
}

static int watch_map(void *user, void *file, size_t size, const void **data) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_MAP);
    if (code)
        return code;
    if (!watch_open_maps(w, 1))
        return ENOMEM;
    code = w->base->map(w->base->user, ((watched *)file)->file, size, data);
    if (code)
        watch_open_maps(w, -1);
    return code;
}

static int watch_unmap(void *user, const void *data, size_t size) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_UNMAP);
    int unmapped = w->base->unmap(w->base->user, data, size);
    watch_open_maps(w, -1);
    return code ? code : unmapped;
}

static int watch_kind(void *user, const char *path, bags_path_kind *kind) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_KIND);
    return code ? code : w->base->kind(w->base->user, path, kind);
}

static int watch_make_dir(void *user, const char *path) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_MAKE_DIR);
    return code ? code : w->base->make_dir(w->base->user, path);
}

static int watch_sync_dir(void *user, const char *path) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_SYNC_DIR);
    return code ? code : w->base->sync_dir(w->base->user, path);
}

static int watch_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_LIST);
    return code ? code : w->base->list(w->base->user, path, each, each_user);
}

static int watch_rename(void *user, const char *from, const char *to) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_RENAME);
    return code ? code : w->base->rename(w->base->user, from, to);
}

static int watch_remove(void *user, const char *path) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_REMOVE);
    return code ? code : w->base->remove(w->base->user, path);
}

static int watch_remove_dir(void *user, const char *path) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_REMOVE_DIR);
    return code ? code : w->base->remove_dir(w->base->user, path);
}

static int watch_link(void *user, const char *from, const char *to) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_LINK);
    return code ? code : w->base->link(w->base->user, from, to);
}

static int watch_reserve(void *user, void *file, uint64_t size) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_RESERVE);
    if (code || !w->base->reserve)
        return code;
    return w->base->reserve(w->base->user, ((watched *)file)->file, size);
}

static int watch_advise(void *user, void *file, const void *map, uint64_t offset,
    uint64_t size, bags_advice advice) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_ADVISE);
    if (code || !w->base->advise)
        return code;
    return w->base->advise(w->base->user, file ? ((watched *)file)->file : NULL, map,
        offset, size, advice);
}

static int watch_write_back(void *user, void *file, uint64_t offset, uint64_t size) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_WRITE_BACK);
    if (code || !w->base->write_back)
        return code;
    return w->base->write_back(w->base->user, ((watched *)file)->file, offset, size);
}

static int watch_identify(
    void *user, void *file, const char *path, bags_identity *identity) {
    watch *w = (watch *)user;
    int code = watch_call(w, HOOK_IDENTIFY);
    return code ? code
                : w->base->identify(w->base->user,
                      file ? ((watched *)file)->file : NULL, path, identity);
}

void watch_start(watch *w, const bags_io *base) {
    memset(w, 0, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    w->base = base;
    w->fail_with = EIO;
    w->last = -1;
    w->io.user = w;
    w->io.open = watch_open;
    w->io.close = watch_close;
    w->io.size = watch_size;
    w->io.read_at = watch_read;
    w->io.write_at = watch_write;
    w->io.truncate = watch_truncate;
    w->io.sync = watch_sync;
    w->io.lock = watch_lock;
    w->io.map = watch_map;
    w->io.unmap = watch_unmap;
    w->io.kind = watch_kind;
    w->io.make_dir = watch_make_dir;
    w->io.sync_dir = watch_sync_dir;
    w->io.list = watch_list;
    w->io.rename = watch_rename;
    w->io.remove = watch_remove;
    w->io.remove_dir = watch_remove_dir;
    w->io.reserve = watch_reserve;
    w->io.advise = watch_advise;
    w->io.write_back = watch_write_back;
    w->io.identify = base->identify ? watch_identify : NULL;
    w->io.link = base->link ? watch_link : NULL;
}

bags_code verify_watched(const char *path, const bags_registry *registry,
    const bags_env *env, const watch *w, uint64_t datapoints, uint64_t blobs,
    bool *repeated, bags_error *err) {
    const unsigned some = 1u << HOOK_OPEN | 1u << HOOK_SIZE | 1u << HOOK_READ |
                          1u << HOOK_KIND | 1u << HOOK_IDENTIFY;
    bags_verify_options options;
    bags_verify_report report;
    uint64_t failed = w->failed;
    memset(&options, 0, sizeof options);
    options.decode = true;
    options.registry = registry;
    options.env = *env;
    bags_code code = bags_verify(path, &options, &report, err);
    if (code)
        return code;
    must(report.datapoints == datapoints && report.blobs == blobs && report.faults == 0,
        "not all was verified:", path);
    if (w->failed > failed && some >> w->last & 1)
        *repeated = true;
    return code;
}

/* ---- a disk in memory ---- */

typedef struct memory_node {
    char *path;
    bool directory;
    bool linked;       /* it has a name */
    size_t open;       /* open handles */
    const void *owner; /* the handle that holds its lock */
    uint64_t made;     /* when, */
    uint64_t changed;  /* and when it was written last */
    bytes content;
} memory_node;

typedef struct memory_handle {
    memory_node *node;
    bool writable;
} memory_handle;

/* Without duplicate and trailing slashes. Free with free(). */
static char *tidy(const char *path) {
    char *copy = strdup(path);
    size_t size = 0;
    for (const char *c = path; *c; c++)
        if (*c != '/' || (c[1] != '/' && c[1] != 0))
            copy[size++] = *c;
    copy[size] = 0;
    return copy;
}

static memory_node *memory_node_find(const memory_disk *m, const char *path) {
    char *wanted = tidy(path);
    memory_node *found = NULL;
    for (size_t i = 0; i < m->count && !found; i++)
        if (m->nodes[i]->linked && strcmp(m->nodes[i]->path, wanted) == 0)
            found = m->nodes[i];
    free(wanted);
    return found;
}

static bool memory_parent_exists(const memory_disk *m, const char *path) {
    char *parent = tidy(path);
    char *slash = strrchr(parent, '/');
    bool there = true;
    if (slash) {
        *slash = 0;
        memory_node *node = memory_node_find(m, parent);
        there = *parent == 0 || (node && node->directory);
    }
    free(parent);
    return there;
}

static memory_node *memory_node_make(memory_disk *m, const char *path, bool directory) {
    if (m->count == m->capacity) {
        m->capacity = m->capacity * 2 + 16;
        m->nodes = (memory_node **)realloc(m->nodes, m->capacity * sizeof *m->nodes);
    }
    memory_node *node = (memory_node *)calloc(1, sizeof *node);
    node->path = tidy(path);
    node->directory = directory;
    node->linked = true;
    node->made = node->changed = ++m->clock;
    m->nodes[m->count++] = node;
    return node;
}

static void memory_node_drop(memory_disk *m, memory_node *node) {
    if (node->linked || node->open)
        return;
    for (size_t i = 0; i < m->count; i++)
        if (m->nodes[i] == node)
            m->nodes[i] = m->nodes[--m->count];
    bytes_free(&node->content);
    free(node->path);
    free(node);
}

static int memory_open(void *user, const char *path, int mode, void **file) {
    memory_disk *m = (memory_disk *)user;
    memory_node *node = memory_node_find(m, path);
    if (mode == BAGS_IO_CREATE) {
        if (node)
            return EEXIST;
        if (!memory_parent_exists(m, path))
            return ENOENT;
        node = memory_node_make(m, path, false);
    }
    if (!node)
        return ENOENT;
    if (node->directory)
        return EISDIR;
    memory_handle *handle = (memory_handle *)malloc(sizeof *handle);
    handle->node = node;
    handle->writable = mode != BAGS_IO_READ;
    node->open++;
    *file = handle;
    return 0;
}

static int memory_close(void *user, void *file) {
    memory_handle *handle = (memory_handle *)file;
    memory_node *node = handle->node;
    node->open--;
    if (node->owner == handle)
        node->owner = NULL;
    free(handle);
    memory_node_drop((memory_disk *)user, node);
    return 0;
}

static int memory_size(void *user, void *file, uint64_t *size) {
    (void)user;
    *size = ((memory_handle *)file)->node->content.size;
    return 0;
}

static int memory_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    const bytes *content = &((memory_handle *)file)->node->content;
    (void)user;
    *done = 0;
    if (offset >= content->size)
        return 0;
    *done = content->size - (size_t)offset;
    *done = *done < size ? *done : size;
    memcpy(data, content->data + offset, *done);
    return 0;
}

static int memory_truncate(void *user, void *file, uint64_t size) {
    memory_handle *handle = (memory_handle *)file;
    bytes *content = &handle->node->content;
    if (!handle->writable)
        return EBADF;
    if (size > (uint64_t)1 << 30)
        return EFBIG;
    while (content->size < size) {
        static const unsigned char zeros[4096] = {0};
        uint64_t part = size - content->size;
        put(content, zeros, part < 4096 ? (size_t)part : 4096);
    }
    content->size = (size_t)size;
    handle->node->changed = ++((memory_disk *)user)->clock;
    return 0;
}

static int memory_write(void *user, void *file, uint64_t offset, const void *data,
    size_t size, size_t *done) {
    memory_handle *handle = (memory_handle *)file;
    bytes *content = &handle->node->content;
    if (!handle->writable)
        return EBADF;
    if (offset + size > content->size) {
        int code = memory_truncate(user, file, offset + size);
        if (code)
            return code;
    }
    if (size)
        memcpy(content->data + offset, data, size);
    handle->node->changed = ++((memory_disk *)user)->clock;
    *done = size;
    return 0;
}

static int memory_sync(void *user, void *file) {
    (void)user;
    (void)file;
    return 0;
}

static int memory_lock(void *user, void *file) {
    memory_node *node = ((memory_handle *)file)->node;
    (void)user;
    if (node->owner && node->owner != file)
        return EWOULDBLOCK;
    node->owner = file;
    return 0;
}

static int memory_map(void *user, void *file, size_t size, const void **data) {
    const bytes *content = &((memory_handle *)file)->node->content;
    memory_disk *m = (memory_disk *)user;
    if (size == 0 || size > content->size)
        return EINVAL;
    if (m->most_maps && m->maps == m->most_maps)
        return ENOMEM;
    m->maps++;
    void *copy = malloc(size);
    memcpy(copy, content->data, size);
    *data = copy;
    return 0;
}

static int memory_unmap(void *user, const void *data, size_t size) {
    void *mapped;
    (void)size;
    ((memory_disk *)user)->maps--;
    memcpy(&mapped, &data, sizeof mapped);
    free(mapped);
    return 0;
}

/* These exist without a node. */
static bool memory_is_root(const char *path) {
    return strcmp(path, ".") == 0 || strcmp(path, "/") == 0;
}

static int memory_kind(void *user, const char *path, bags_path_kind *kind) {
    memory_node *node = memory_node_find((memory_disk *)user, path);
    *kind = memory_is_root(path) ? BAGS_PATH_DIRECTORY
            : !node              ? BAGS_PATH_NONE
            : node->directory    ? BAGS_PATH_DIRECTORY
                                 : BAGS_PATH_FILE;
    return 0;
}

static int memory_make_dir(void *user, const char *path) {
    memory_disk *m = (memory_disk *)user;
    if (memory_node_find(m, path))
        return EEXIST;
    if (!memory_parent_exists(m, path))
        return ENOENT;
    memory_node_make(m, path, true);
    return 0;
}

static int memory_sync_dir(void *user, const char *path) {
    memory_node *node = memory_node_find((memory_disk *)user, path);
    return memory_is_root(path) || (node && node->directory) ? 0 : ENOENT;
}

/* The name of a node if it is in the directory; otherwise NULL. */
static const char *memory_name_in(const memory_node *node, const char *path) {
    size_t size = strlen(path);
    if (!node->linked || strncmp(node->path, path, size) != 0 ||
        node->path[size] != '/' || strchr(node->path + size + 1, '/'))
        return NULL;
    return node->path + size + 1;
}

static int memory_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    memory_disk *m = (memory_disk *)user;
    memory_node *directory = memory_node_find(m, path);
    if (!directory)
        return ENOENT;
    if (!directory->directory)
        return ENOTDIR;
    int code = 0;
    for (size_t i = 0; i < m->count && !code; i++) {
        const char *name = memory_name_in(m->nodes[i], directory->path);
        if (name)
            code = each(each_user, name);
    }
    return code;
}

static bool memory_is_empty(const memory_disk *m, const memory_node *node) {
    for (size_t i = 0; i < m->count; i++)
        if (memory_name_in(m->nodes[i], node->path))
            return false;
    return true;
}

static int memory_remove_any(memory_disk *m, const char *path, bool directory) {
    memory_node *node = memory_node_find(m, path);
    if (!node)
        return ENOENT;
    if (node->directory != directory)
        return directory ? ENOTDIR : EISDIR;
    if (directory && !memory_is_empty(m, node))
        return ENOTEMPTY;
    node->linked = false;
    memory_node_drop(m, node);
    return 0;
}

static int memory_remove(void *user, const char *path) {
    return memory_remove_any((memory_disk *)user, path, false);
}

static int memory_remove_dir(void *user, const char *path) {
    return memory_remove_any((memory_disk *)user, path, true);
}

static void memory_move(memory_node *node, const char *from, const char *to) {
    size_t size = strlen(from);
    if (!node->linked || strncmp(node->path, from, size) != 0 ||
        (node->path[size] != '/' && node->path[size] != 0))
        return;
    size_t total = strlen(to) + strlen(node->path + size) + 1;
    char *path = (char *)malloc(total);
    snprintf(path, total, "%s%s", to, node->path + size);
    free(node->path);
    node->path = path;
}

static int memory_rename(void *user, const char *from, const char *to) {
    memory_disk *m = (memory_disk *)user;
    memory_node *node = memory_node_find(m, from);
    memory_node *target = memory_node_find(m, to);
    if (!node || !memory_parent_exists(m, to))
        return ENOENT;
    if (target == node)
        return 0;
    if (target) {
        int code = memory_remove_any(m, to, node->directory);
        if (code)
            return code;
    }
    char *old_path = tidy(from), *new_path = tidy(to);
    for (size_t i = 0; i < m->count; i++)
        memory_move(m->nodes[i], old_path, new_path);
    free(old_path);
    free(new_path);
    return 0;
}

static int memory_identify(
    void *user, void *file, const char *path, bags_identity *identity) {
    memory_node *node = file ? ((memory_handle *)file)->node
                             : memory_node_find((memory_disk *)user, path);
    if (!node)
        return ENOENT;
    memset(identity, 0, sizeof *identity);
    identity->inode = node->made;
    identity->time = node->changed;
    identity->size = node->content.size;
    return 0;
}

void memory_disk_start(memory_disk *m) {
    memset(m, 0, sizeof *m);
    m->io.user = m;
    m->io.open = memory_open;
    m->io.close = memory_close;
    m->io.size = memory_size;
    m->io.read_at = memory_read;
    m->io.write_at = memory_write;
    m->io.truncate = memory_truncate;
    m->io.sync = memory_sync;
    m->io.lock = memory_lock;
    m->io.map = memory_map;
    m->io.unmap = memory_unmap;
    m->io.kind = memory_kind;
    m->io.make_dir = memory_make_dir;
    m->io.sync_dir = memory_sync_dir;
    m->io.list = memory_list;
    m->io.rename = memory_rename;
    m->io.remove = memory_remove;
    m->io.remove_dir = memory_remove_dir;
    m->io.identify = memory_identify;
}

void memory_disk_free(memory_disk *m) {
    for (size_t i = 0; i < m->count; i++) {
        bytes_free(&m->nodes[i]->content);
        free(m->nodes[i]->path);
        free(m->nodes[i]);
    }
    free(m->nodes);
    memset(m, 0, sizeof *m);
}

void memory_disk_make_dir(memory_disk *m, const char *path) {
    char *part = tidy(path);
    for (char *c = part + 1; *c; c++) {
        if (*c != '/')
            continue;
        *c = 0;
        memory_make_dir(m, part);
        *c = '/';
    }
    memory_make_dir(m, part);
    free(part);
}

void memory_disk_save(memory_disk *m, const char *path, const void *data, size_t size) {
    char *directory = tidy(path);
    char *slash = strrchr(directory, '/');
    if (slash) {
        *slash = 0;
        memory_disk_make_dir(m, directory);
    }
    free(directory);
    memory_node *node = memory_node_find(m, path);
    if (!node)
        node = memory_node_make(m, path, false);
    node->content.size = 0;
    put(&node->content, data, size);
}

/* True if everything in b is in a. */
static bool is_part_of(const memory_disk *a, const memory_disk *b) {
    for (size_t i = 0; i < b->count; i++) {
        const memory_node *node = b->nodes[i];
        const memory_node *other = memory_node_find(a, node->path);
        if (node->linked && (!other || other->directory != node->directory))
            return wrong("%s is on one disk alone\n", node->path);
        if (node->linked &&
            (other->content.size != node->content.size ||
                (node->content.size && memcmp(other->content.data, node->content.data,
                                           node->content.size) != 0)))
            return wrong("%s has other bytes: %zu, and %zu\n", node->path,
                node->content.size, other->content.size);
    }
    return true;
}

bool is_same_disk(const memory_disk *a, const memory_disk *b) {
    return is_part_of(a, b) && is_part_of(b, a);
}

size_t memory_disk_files(const memory_disk *m) {
    size_t files = 0;
    for (size_t i = 0; i < m->count; i++)
        files += m->nodes[i]->linked && !m->nodes[i]->directory;
    return files;
}

bags_view memory_disk_find(const memory_disk *m, const char *path) {
    memory_node *node = memory_node_find(m, path);
    bags_view view = {NULL, 0};
    if (node && !node->directory) {
        view.data = node->content.data;
        view.size = node->content.size;
    }
    return view;
}

/* ---- tests ---- */

tally memory;
watch disk;

int support_setup(void **state) {
    const char *parent = getenv("TMPDIR");
    (void)state;
    tally_start(&memory);
    watch_start(&disk, bags_io_local());
    snprintf(scratch, sizeof scratch, "%s/bags-test-XXXXXX",
        parent && *parent ? parent : "/tmp");
    return mkdtemp(scratch) ? 0 : -1;
}

int support_teardown(void **state) {
    (void)state;
    remove_tree(scratch);
    if (memory.live || disk.files || disk.maps) {
        fprintf(stderr, "left: %d blocks of memory, %d open files, %d mappings\n",
            (int)memory.live, disk.files, disk.maps);
        return -1;
    }
    return 0;
}

uint64_t support_stride(void) {
    const char *quick = getenv("BAGS_QUICK");
    unsigned long stride = quick ? strtoul(quick, NULL, 10) : 1;
    return stride ? stride : 1;
}
