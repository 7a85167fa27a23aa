/*
 * private.h - what several files in this directory share. Programs do not include it.
 */
#ifndef BAGS_FORMATS_PRIVATE_H
#define BAGS_FORMATS_PRIVATE_H

#include "data.h"
#include "loader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Allocate the zeroed state of an open codec or file, whose first member is the
 * buffer that holds it. NULL if out of memory. */
static inline void *format_state(
    const bags_allocator *allocator, size_t size, bags_error *err) {
    bags_buffer memory = bags_buffer_of(allocator);
    if (bags_buffer_reserve(&memory, size, err))
        return NULL;
    memset(memory.data, 0, size);
    memcpy(memory.data, &memory, sizeof memory);
    return memory.data;
}

static inline void format_state_close(void *state) {
    bags_buffer memory;
    if (!state)
        return;
    memcpy(&memory, state, sizeof memory);
    bags_buffer_free(&memory);
}

/* Memory that is freed with the object that it belongs to. */
typedef struct format_block {
    bags_buffer memory; /* see format_state */
    struct format_block *older;
} format_block;

/* Zeroed memory for `count` elements, until format_blocks_free. NULL if out of memory. */
static inline void *format_block_add(format_block **blocks,
    const bags_allocator *allocator, size_t count, size_t size, bags_error *err) {
    format_block *made = NULL;
    if (count > (SIZE_MAX - sizeof *made) / size)
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    else
        made =
            (format_block *)format_state(allocator, sizeof *made + count * size, err);
    if (!made)
        return NULL;
    made->older = *blocks;
    *blocks = made;
    return made + 1;
}

static inline void format_blocks_free(format_block *blocks) {
    while (blocks) {
        format_block *older = blocks->older;
        format_state_close(blocks);
        blocks = older;
    }
}

/* A rule that options break, and what is wrong with them then. */
typedef struct format_rule {
    bool broken;
    const char *what;
} format_rule;

/* Fail because of the first rule that is broken. `front` precedes the message. */
static inline bags_code format_check_rules(
    const format_rule *rules, size_t count, const char *front, bags_error *err) {
    for (size_t i = 0; i < count; i++)
        if (rules[i].broken)
            return bags_fail(err, BAGS_ERROR_ARGUMENT, "%s%s", front, rules[i].what);
    return BAGS_OK;
}

#define FORMAT_CHECK(rules, front, err)                                                \
    format_check_rules(rules, sizeof rules / sizeof *rules, front, err)

/* What is called only where something fails: not a part of the loops that call it. */
#ifdef __GNUC__
#define FORMAT_COLD __attribute__((cold))
#else
#define FORMAT_COLD
#endif

/* Name dataset, field and datapoint, and of a sequence the item (UINT64_MAX: none), in
 * front of a message. */
FORMAT_COLD static inline bags_code format_fail_at(const bags_reader *reader,
    const char *field, uint64_t datapoint, uint64_t item, bags_code code,
    bags_error *err) {
    char why[600], of[40] = "";
    int system = err->system;
    (void)snprintf(why, sizeof why, "%.599s", err->message);
    if (item != UINT64_MAX)
        (void)snprintf(of, sizeof of, "item %" PRIu64 ": ", item);
    (void)bags_fail(err, code, "%s: field \"%.200s\": datapoint %" PRIu64 ": %s%s",
        bags_path_tail(bags_reader_path(reader)), field, datapoint, of, why);
    err->system = system;
    return code;
}

/* Check an image of pixels in memory. *stride 0 becomes a row. */
static inline bags_code format_check_pixels(
    const bags_image *image, uint32_t most, size_t *stride, bags_error *err) {
    uint64_t row = (uint64_t)image->width * image->channels;
    if (image->dtype != BAGS_DTYPE_UINT8 || image->channels < 1 || image->channels > 4)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "not an image of uint8 with 1 to 4 channels (%s, %u channels)",
            bags_dtype_name(image->dtype), (unsigned)image->channels);
    if (image->width < 1 || image->height < 1)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "image without pixels (%u x %u)",
            (unsigned)image->width, (unsigned)image->height);
    if (image->width > most || image->height > most)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "side of an image out of range (%u x %u pixels, maximum %u)",
            (unsigned)image->width, (unsigned)image->height, (unsigned)most);
    if (*stride && *stride < row)
        return bags_fail(err, BAGS_ERROR_ARGUMENT,
            "stride too small (%" PRIu64 " bytes, row %" PRIu64 ")", (uint64_t)*stride,
            row);
    if (row > SIZE_MAX / image->height || *stride > SIZE_MAX / image->height)
        return bags_fail(
            err, BAGS_ERROR_LIMIT, "image too large for the address space");
    *stride = *stride ? *stride : (size_t)row;
    return BAGS_OK;
}

/* Of `count` structs of some size, each with a number that is not below that of the one
 * before, the last whose number is at most `most`; the first if none is. `numbers` is
 * that of the first. */
static inline size_t format_last_at_most(
    const uint64_t *numbers, size_t size, size_t count, uint64_t most) {
    size_t low = 0, high = count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        const void *at = (const char *)numbers + middle * size;
        if (*(const uint64_t *)at <= most)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#define FORMAT_PATH 4096 /* bytes of the longest path */

/* Write DIRECTORY/NAMEENDING to out. */
static inline bags_code format_path(char out[FORMAT_PATH], const char *directory,
    const char *name, const char *ending, bags_error *err) {
    int size = snprintf(out, FORMAT_PATH, "%s/%s%s", directory, name, ending);
    return size >= 0 && size < FORMAT_PATH
               ? BAGS_OK
               : bags_fail(err, BAGS_ERROR_LIMIT, "%s: path too long",
                     bags_path_tail(directory));
}

static inline bool format_is_same(const bags_identity *a, const bags_identity *b) {
    return a->device == b->device && a->inode == b->inode && a->time == b->time &&
           a->size == b->size;
}

/* Check that an open file or, if it is NULL, what a path leads to is what had this
 * identity when it was found: that the files of a dataset are of one version. Without
 * the hook, it is not noticed. */
static inline bags_code format_check_identity(const bags_io *io, void *file,
    const char *path, const bags_identity *was, bags_error *err) {
    bags_identity now;
    if (!io->identify)
        return BAGS_OK;
    int error = io->identify(io->user, file, path, &now);
    if (error && error != ENOENT)
        return bags_fail_io(io, error, path, "identify", err);
    if (!error && format_is_same(&now, was))
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: changed while it was read: another process replaced, renamed, "
        "removed or wrote it",
        path);
}

/* The size of a file, and what identifies its version, which stays as it is without the
 * hook. */
static inline bags_code format_measure(const bags_io *io, const char *path,
    uint64_t *size, bags_identity *identity, bags_error *err) {
    void *file = NULL;
    int error = io->open(io->user, path, BAGS_IO_READ, &file);
    if (error)
        return bags_fail_io(io, error, path, "open", err);
    error = io->size(io->user, file, size);
    if (!error && io->identify)
        error = io->identify(io->user, file, path, identity);
    io->close(io->user, file);
    return bags_fail_io(io, error, path, "get the size of", err);
}

/* Write bytes at an offset. Returns 0, or an errno value. */
static inline int format_write_all(
    const bags_io *io, void *file, uint64_t at, const void *data, size_t size) {
    int error = 0;
    for (size_t done = 0, step = 0; done < size && !error; done += step) {
        step = 0;
        error = io->write_at(
            io->user, file, at + done, (const char *)data + done, size - done, &step);
        if (!error && (step == 0 || step > size - done))
            error = EIO;
    }
    return error;
}

/* Open a file and lock it, or that of a process that was killed. Messages say of `of`, to
 * which it belongs, that another running `by` has locked it. */
static inline bags_code format_open_locked(const bags_io *io, const char *path,
    const char *of, const char *by, void **file, bags_error *err) {
    for (;;) {
        bags_identity opened, found;
        int error = io->open(io->user, path, BAGS_IO_WRITE, file);
        if (error == ENOENT)
            error = io->open(io->user, path, BAGS_IO_CREATE, file);
        if (error == EEXIST)
            continue;
        if (error)
            return bags_fail_io(io, error, path, "create", err);
        error = io->lock(io->user, *file);
        if (!error && io->identify)
            error = io->identify(io->user, *file, path, &opened);
        /* Before it was locked, another process may have renamed or removed it. */
        if (!error && (!io->identify || (!io->identify(io->user, NULL, path, &found) &&
                                            opened.device == found.device &&
                                            opened.inode == found.inode)))
            return BAGS_OK;
        io->close(io->user, *file);
        *file = NULL;
        if (error == EWOULDBLOCK)
            return bags_fail(
                err, BAGS_ERROR_LOCKED, "%s: locked by another running %s", of, by);
        if (error)
            return bags_fail_io(io, error, path, "lock", err);
    }
}

/* True if a name ends like this. */
static inline bool format_ends(const char *name, size_t size, const char *ending) {
    size_t length = strlen(ending);
    return size >= length && !memcmp(name + size - length, ending, length);
}

#define FORMAT_SUFFIXES 4

/* The endings of a Bag, and of its checksums, ends and dictionary, which are next to it. */
static inline const char *format_suffix(size_t i) {
    static const char *const suffixes[FORMAT_SUFFIXES] = {
        ".bag", ".crc", ".idx", ".dict"};
    return suffixes[i];
}

/* True for the name of a Bag, or of a file that is next to one. */
static inline bool format_is_of_bag(const char *name, size_t size) {
    size_t i = 0;
    while (i < FORMAT_SUFFIXES && !format_ends(name, size, format_suffix(i)))
        i++;
    return i < FORMAT_SUFFIXES;
}

/* True if Bags of a type may have a dictionary: those of zstd, and of codecs that are not
 * known here. */
static inline bool format_has_dictionary(const bags_type *type) {
    static const char *const none[] = {"bytes", "utf8", "int", "i64", "u64", "array",
        "jpeg", "jpg", "png", "npy", "msgpack", "tree", "mp4", "webm"};
    size_t i = 0;
    while (i < sizeof none / sizeof *none && !bags_view_is(type->name, none[i]))
        i++;
    return i == sizeof none / sizeof *none;
}

/* The name of the next file of a shard in the directory of its dataset, "000003/refs.bag":
 * of spec.json, the first, then each Bag and what may be next to it, and in the first
 * shard the mark of bags_finalize. All but spec.json and the Bags may be missing. *next
 * begins with 0. False after the last one. */
static inline bool format_file_name(
    const bags_reader *reader, size_t shard, size_t *next, char name[600]) {
    char directory[255 + 1 + 1] = ""; /* the longest name of a file, and a slash */
    size_t count = 0;
    const bags_shard *own = &bags_reader_shards(reader, &count)[shard];
    const bags_field *fields = bags_reader_fields(reader, &count);
    if (own->digits)
        (void)snprintf(directory, sizeof directory, "%0*" PRIu64 "/", (int)own->digits,
            own->number);
    size_t files = 1 + FORMAT_SUFFIXES * (count + 1), i = (*next)++, field = 0;
    for (; i > 0 && i < files; i = (*next)++) {
        field = (i - 1) / FORMAT_SUFFIXES;
        bool is_dictionary = i % FORMAT_SUFFIXES == 0; /* the last ending */
        if (!is_dictionary ||
            (field < count && format_has_dictionary(bags_reader_type(reader, field))))
            break;
    }
    if (i == 0 || i == files)
        (void)snprintf(name, 600, "%s%s", directory, i ? "finalized" : "spec.json");
    else if (i < files)
        (void)snprintf(name, 600, "%s%s%s", directory,
            field < count ? fields[field].name : "refs",
            format_suffix((i - 1) % FORMAT_SUFFIXES));
    return i < files + (shard == 0);
}

/* Fail with BAGS_ERROR_VALUE if a dataset has blobs that no datapoint refers to. */
static inline bags_code format_check_referenced(
    const bags_reader *reader, const bags_env *env, bags_error *err) {
    size_t count = 0;
    const bags_field *fields = bags_reader_fields(reader, &count);
    bags_buffer memory = bags_buffer_of(env->allocator);
    bags_code code =
        bags_buffer_reserve(&memory, (count + 1) * sizeof(bags_field_info), err);
    bags_field_info *found = (bags_field_info *)(void *)memory.data;
    if (!code)
        code = bags_unreferenced(reader, env, false, found, err);
    for (size_t i = 0; i < count && !code; i++)
        if (found[i].blobs)
            code = bags_fail(err, BAGS_ERROR_VALUE,
                "%s: field \"%.200s\": has %" PRIu64
                " blob%s that no datapoint refers to",
                bags_path_tail(bags_reader_path(reader)), fields[i].name,
                found[i].blobs, found[i].blobs == 1 ? "" : "s");
    bags_buffer_free(&memory);
    return code;
}

/* The type inside of zstd(NAME,ARGUMENTS): NAME(ARGUMENTS), as views of its text, which
 * is followed by more. False if it is another type, or has none inside. */
static inline bool format_type_inside(const bags_type *type, bags_type *inside) {
    if (!bags_view_is(type->name, "zstd") || type->count == 0)
        return false;
    *inside = *type;
    inside->name = bags_type_argument(type, 0);
    inside->count = type->count - 1;
    size_t front = inside->name.size + (inside->count > 0);
    inside->arguments.data = type->arguments.data + front;
    inside->arguments.size = type->arguments.size - front;
    return true;
}

/* True for a frame of zstd that names the dictionary which it needs. Only blobs of zstd
 * are frames. */
static inline bool format_needs_dictionary(const bags_type *type, bags_view blob) {
    if (!bags_view_is(type->name, "zstd") || blob.size < 10 ||
        bags_load(blob.data, 4, false) != 0xFD2FB528)
        return false;
    size_t start = blob.data[4] & 0x20 ? 5 : 6;
    size_t size = blob.data[4] & 3; /* of the dictionary's number; 3: 4 bytes */
    return bags_load(blob.data + start, size == 3 ? 4 : size, false) != 0;
}

/* ---- base64 ---- */

#define FORMAT_BASE64 "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

/* Encode the first three of `size` bytes, or all if they are fewer. */
static inline void format_base64_encode(
    const unsigned char *data, size_t size, char four[4]) {
    uint64_t bits = size < 3 ? bags_load(data, size, true) << 8 * (3 - size)
                             : bags_load(data, 3, true);
    for (size_t i = 0; i < 4; i++)
        four[i] = i > size ? '=' : FORMAT_BASE64[bits >> (18 - 6 * i) & 63];
}

/* Decode standard base64 with padding to `out`, which has `capacity` bytes. Returns
 * NULL, or what is wrong. */
static inline const char *format_base64_decode(const char *from, size_t size,
    unsigned char *out, size_t capacity, size_t *out_size) {
    size_t padding = size && from[size - 1] == '=';
    padding += padding && size > 1 && from[size - 2] == '=';
    size_t digits = size - padding, made = 0;
    uint32_t bits = 0;
    if (size % 4)
        return "its length is not a multiple of 4";
    if (size / 4 * 3 - padding > capacity)
        return "too long";
    for (size_t i = 0; i < digits; i++) {
        const char *digit =
            from[i] ? strchr(FORMAT_BASE64, from[i]) : NULL; /* not its own end */
        if (!digit)
            return "an invalid character";
        bits = bits << 6 | (uint32_t)(digit - FORMAT_BASE64);
        if (i % 4 > 0)
            out[made++] = (unsigned char)(bits >> (6 - i % 4 * 2));
    }
    *out_size = made;
    /* Bits of the last digit that belong to no byte would be lost. */
    return bits & ((1U << 2 * padding) - 1) ? "the last digit has unused bits" : NULL;
}

/* ---- checksums ---- */

/* The CRC-32 of zip and PNG. Its tables are of eight bytes at once: table[k][i] is the
 * CRC of byte i and k zeros. */
static inline void format_crc_tables(uint32_t (*table)[256]) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        table[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = table[k - 1][i];
            table[k][i] = crc >> 8 ^ table[0][crc & 255];
        }
}

/* Start with UINT32_MAX; the CRC is the complement of the last result. */
static inline uint32_t format_crc_add(
    uint32_t (*table)[256], uint32_t crc, const unsigned char *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        crc ^= (uint32_t)bags_load(data, 4, false);
        crc = table[7][crc & 255] ^ table[6][crc >> 8 & 255] ^
              table[5][crc >> 16 & 255] ^ table[4][crc >> 24] ^ table[3][data[4]] ^
              table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
    }
    for (; size > 0; data++, size--)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 255];
    return crc;
}

/* An array to be encoded has as many bytes as its dtype and shape state. */
static inline bags_code format_array_check(const bags_value *value, bags_error *err) {
    size_t size = 0;
    if (!bags_array_size(value->dtype, value->dims, value->shape, &size))
        return bags_fail(
            err, BAGS_ERROR_VALUE, "array too large for the address space");
    if (value->size == size)
        return BAGS_OK;
    return bags_fail(err, BAGS_ERROR_VALUE,
        "size differs from that of the dtype and shape (%" PRIu64
        " bytes, expected %" PRIu64 ")",
        (uint64_t)value->size, (uint64_t)size);
}

/* The number that a float of 2, 4 or 8 bytes is. */
static inline double format_real(uint64_t bits, size_t size) {
    uint32_t low = (uint32_t)bits;
    int exponent = (int)(bits >> 10 & 31);
    float single;
    double number;
    memcpy(&single, &low, sizeof single);
    memcpy(&number, &bits, sizeof number);
    if (size > 2)
        return size == 4 ? (double)single : number;
    number = (double)(bits & 1023);
    if (exponent == 31) {
        uint64_t special =
            bits & 1023 ? UINT64_C(0x7FF8000000000000) : UINT64_C(0x7FF0000000000000);
        memcpy(&number, &special, sizeof number);
    } else {
        number = exponent ? number + 1024 : number;
        for (exponent = exponent ? exponent - 25 : -24; exponent < 0; exponent++)
            number /= 2;
        for (; exponent > 0; exponent--)
            number *= 2;
    }
    return bits >> 15 & 1 ? -number : number;
}

/* The bits of the float of 2, 4 or 8 bytes that is nearest to a number; of two, the even
 * one. False if the number is too large. */
static inline bool format_real_bits(double number, size_t size, uint64_t *out) {
    float single = (float)number;
    uint64_t bits, rest;
    uint32_t low;
    memcpy(&bits, &number, sizeof bits);
    memcpy(&low, &single, sizeof low);
    *out = size == 4 ? low : bits;
    int exponent = (int)(bits >> 52 & 2047) - 1023; /* 1024: not finite */
    if (size > 2)
        return size == 8 || exponent == 1024 || (low >> 23 & 255) < 255;
    uint64_t sign = bits >> 48 & 0x8000, fraction = bits & (UINT64_MAX >> 12);
    *out = sign | 0x7C00 | (exponent == 1024 && fraction ? 0x200 : 0);
    if (exponent > 15)
        return exponent == 1024;
    fraction |= UINT64_C(1) << 52; /* the bit that is not stored, but below 2^-14 */
    exponent = exponent < -26 ? -26 : exponent; /* far below the least: 0 */
    int dropped = exponent < -14 ? 28 - exponent : 42;
    rest = fraction & ((UINT64_C(1) << dropped) - 1);
    fraction >>= dropped;
    fraction += rest + fraction % 2 > UINT64_C(1) << (dropped - 1);
    fraction += exponent < -14 ? 0 : (uint64_t)(exponent + 14) << 10;
    *out = sign | fraction;
    return fraction < 0x7C00;
}

/* True if a decimal, whose nearest float64 is `number`, is what a float `held` is when
 * written with as many digits: 0.1 is a float32, 16777217 is not. */
static inline bool format_is_decimal(const char *word, double number, double held) {
    char again[64];
    int digits = 0, zeros = 0; /* significant ones; trailing zeros among them */
    for (; *word && *word != 'e' && *word != 'E'; word++) {
        if (*word < '0' || *word > '9' || (*word == '0' && digits == 0))
            continue;
        digits++;
        zeros = *word == '0' ? zeros + 1 : 0;
    }
    digits -= zeros;
    bool is_zero = number <= 0 && number >= 0;
    if (digits == 0 || is_zero)
        return digits == 0;
    snprintf(again, sizeof again, "%.*e", digits > 17 ? 16 : digits - 1, held);
    double same = strtod(again, NULL);
    return digits <= 17 && same <= number && same >= number;
}

/* The number that a hexadecimal digit is; -1 if it is not one. */
static inline int format_hex(char c) {
    const char *digits = "0123456789abcdef";
    const char *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

#define FORMAT_PLAIN                                                                   \
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_~"

/* Text for a URL, to be freed: all but FORMAT_PLAIN and what is in `keep` is encoded. What
 * is encoded before `plain`, which may be NULL, stays as it is. NULL: out of memory. */
static inline char *format_url(const char *from, const char *keep, const char *plain) {
    char *out = (char *)malloc(3 * strlen(from) + 1);
    size_t size = 0;
    if (!out)
        return NULL;
    for (const char *at = from; *at; at++) {
        bool encoded = plain && at < plain && *at == '%' && format_hex(at[1]) >= 0 &&
                       format_hex(at[2]) >= 0;
        if (encoded || strchr(FORMAT_PLAIN, *at) || strchr(keep, *at))
            out[size++] = *at;
        else
            size +=
                (size_t)snprintf(out + size, 4, "%%%02X", (unsigned)(unsigned char)*at);
    }
    out[size] = '\0';
    return out;
}

/* The decimal number at *at, which is moved past its digits; they end before `end`, which
 * is NULL if other text follows. False if there are none, or it is above 2^64-1. */
static inline bool format_decimal(const char **at, const char *end, uint64_t *out) {
    const char *start = *at;
    bool fits = true;
    for (*out = 0; *at != end && **at >= '0' && **at <= '9'; ++*at) {
        unsigned digit = (unsigned)(**at - '0');
        fits = fits && *out <= (UINT64_MAX - digit) / 10;
        *out = *out * 10 + digit;
    }
    return fits && *at > start;
}

/* The fewest digits that read back as the same number, which is a float or a double. */
static inline void format_digits(char out[40], double number, bool is_single) {
    double least = is_single ? 1.2e-38 : 2.3e-308;
    bool is_tiny = number > -least && number < least; /* it has fewer digits */
    int digits = is_tiny ? 1 : is_single ? 6 : 15;
    for (bool differs = true; differs && digits < 18; digits++) {
        (void)snprintf(out, 40, "%.*g", digits, number);
        double back = strtod(out, NULL);
        back = is_single ? (double)(float)back : back;
        differs = back < number || back > number;
    }
    char *comma = strchr(out, ','); /* of the program's locale */
    if (comma)
        *comma = '.';
}

/* A number, which is not NaN, as JSON that reads back as the same double, and not as an
 * integer. Infinity, which JSON has no word for, is a number too large for a double. */
static inline void format_json_real(char out[40], double number) {
    format_digits(out, number, false);
    if (out[strspn(out, "-")] == 'i')
        (void)snprintf(out, 40, number < 0 ? "-9e999" : "9e999");
    else if (!out[strspn(out, "-0123456789")])
        strcat(out, ".0");
}

/* Write a code point as UTF-8. Returns the end. */
static inline unsigned char *format_utf8(unsigned char *to, uint32_t point) {
    int more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    uint32_t mark = more ? 0xFF00U >> (more + 1) & 0xFF : 0;
    *to++ = (unsigned char)(mark | point >> 6 * more);
    while (more-- > 0)
        *to++ = (unsigned char)(0x80 | (point >> 6 * more & 0x3F));
    return to;
}

/* A hash of bytes and, unless it is 0, of those before them (FNV-1a). */
static inline uint64_t format_hash(uint64_t before, const void *data, size_t size) {
    const unsigned char *bytes = (const unsigned char *)data;
    uint64_t hash = before ? before : UINT64_C(14695981039346656037);
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(1099511628211);
    return hash;
}

/* ---- random numbers, the same on every platform ---- */

#define FORMAT_GOLDEN UINT64_C(0x9E3779B97F4A7C15) /* 2^64 / the golden ratio, odd */

/* A bijection of 64 bits in which every bit depends on all. */
static inline uint64_t format_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static inline uint64_t format_key(uint64_t seed, uint64_t number) {
    return format_mix(format_mix(seed + FORMAT_GOLDEN) + number);
}

/* The next of a series of random numbers. */
static inline uint64_t format_random(uint64_t *state) {
    return format_mix(*state += FORMAT_GOLDEN);
}

/* At least 0 and below 1. */
static inline double format_uniform(uint64_t *state) {
    return (double)(format_random(state) >> 11) / 9007199254740992.0;
}

/* ---- what order.c and loader.c share ---- */

/* What the memory of a bags_order contains. */
typedef struct format_order_tables {
    uint64_t *starts; /* of the datasets in the list of all, and its length */
    uint32_t *shares; /* with weights: slots of each dataset in a block */
    uint32_t *slots;  /* with weights: the dataset of each slot */
} format_order_tables;

static inline format_order_tables format_order_tables_of(const bags_order *order) {
    format_order_tables t;
    t.starts = (uint64_t *)(void *)order->memory.data;
    t.shares = (uint32_t *)(void *)(t.starts + order->count + 1);
    t.slots = t.shares + order->count;
    return t;
}

/* ---- what loader.c and tokens.c share: one does not need the other ---- */

#define FORMAT_TOKENS_FIELDS 16 /* at most */
#define FORMAT_PACK_BLOCK 4096  /* documents that are packed together */

typedef struct format_tokens_tensor {
    const char *name;
    bags_dtype dtype;
    uint64_t length; /* of a window; 0: ragged */
} format_tokens_tensor;

/* A block of packed rows, and the memory to make one. */
typedef struct format_packer {
    bool valid;
    uint64_t epoch, block;
    size_t row_count;
    uint64_t dropped;   /* documents that were left out */
    bags_buffer pieces; /* bags_piece: those of a row are neighbours */
    bags_buffer rows;   /* uint32_t: where each row starts, and all end */
    bags_pick picks[FORMAT_PACK_BLOCK];
    uint64_t lengths[FORMAT_PACK_BLOCK], keys[FORMAT_PACK_BLOCK];
    uint32_t full[FORMAT_PACK_BLOCK], row_of[FORMAT_PACK_BLOCK];
    uint32_t filled[FORMAT_PACK_BLOCK], tree[2 * FORMAT_PACK_BLOCK];
} format_packer;

/* The first member of bags_tokens. */
typedef struct format_tokens {
    bags_buffer memory;
    const bags_reader **readers;
    size_t dataset_count;
    uint64_t *units; /* of each dataset: windows or, packed, documents */
    bool packed;
    uint64_t length; /* of a window or row */
    uint64_t hash;   /* of what determines the windows */
    format_tokens_tensor *tensors;
    size_t count, field_count; /* tensors; the first ones are those of fields */
    void (*touch)(const bags_tokens *tokens, const bags_pick *pick);
    bags_code (*window)(const bags_tokens *tokens, bags_row *row, const bags_pick *pick,
        unsigned char *const *out, bags_error *err);
    bags_code (*piece)(const bags_tokens *tokens, bags_row *row,
        const bags_piece *piece, unsigned char *const *out, bags_error *err);
    bags_code (*pack)(const bags_tokens *tokens, format_packer *packer, bags_row *row,
        const bags_order *order, uint64_t epoch, uint64_t block, bags_error *err);
} format_tokens;

#endif /* BAGS_FORMATS_PRIVATE_H */
