/*
 * import.c - what the importers share: memory, files, names. No library.
 */
#include "import.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- memory ---- */

#define IM_ALIGN 16
#define IM_BLOCK 4096 /* bytes of the first block */

/* Blocks form a list, the newest first. What is allocated follows it. */
typedef struct im_block {
    struct im_block *next;
    size_t size; /* with this header */
} im_block;

#define IM_HEADER ((sizeof(im_block) + IM_ALIGN - 1) / IM_ALIGN * IM_ALIGN)

static void *im_resize(const bags_allocator *allocator, void *data,
    size_t old_size, size_t new_size) {
    if (allocator->resize)
        return allocator->resize(allocator->user, data, old_size, new_size);
    if (new_size)
        return realloc(data, new_size);
    free(data);
    return NULL;
}

bags_import_arena bags_import_arena_start(const bags_allocator *allocator) {
    bags_import_arena arena;
    memset(&arena, 0, sizeof arena);
    if (allocator)
        arena.allocator = *allocator;
    return arena;
}

bags_buffer bags_import_buffer_start(const bags_allocator *allocator) {
    bags_buffer buffer;
    memset(&buffer, 0, sizeof buffer);
    if (allocator) {
        buffer.resize = allocator->resize;
        buffer.user = allocator->user;
    }
    return buffer;
}

void *bags_import_alloc(
    bags_import_arena *arena, size_t count, size_t size, bags_error *err) {
    im_block *block = (im_block *)arena->blocks;
    if (size && count > (SIZE_MAX / 4 - IM_ALIGN - IM_HEADER) / size) {
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        return NULL;
    }
    size_t bytes = (count * size + IM_ALIGN - 1) / IM_ALIGN * IM_ALIGN;
    if (!block || block->size - arena->used < bytes) {
        size_t least = IM_HEADER + bytes;
        size_t wanted = block ? 2 * block->size : IM_BLOCK;
        if (wanted < least || wanted > SIZE_MAX / 4)
            wanted = least;
        block = (im_block *)im_resize(&arena->allocator, NULL, 0, wanted);
        if (!block) {
            bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
            return NULL;
        }
        block->next = (im_block *)arena->blocks;
        block->size = wanted;
        arena->blocks = block;
        arena->used = IM_HEADER;
    }
    void *made = (char *)block + arena->used;
    arena->used += bytes;
    memset(made, 0, bytes);
    return made;
}

char *bags_import_text(
    bags_import_arena *arena, const void *text, size_t size, bags_error *err) {
    char *made = (char *)bags_import_alloc(arena, size + 1, 1, err);
    if (made && size)
        memcpy(made, text, size);
    return made;
}

char *bags_import_format(
    bags_import_arena *arena, bags_error *err, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    size_t bytes = (size_t)(size < 0 ? 0 : size) + 1;
    char *made = (char *)bags_import_alloc(arena, bytes, 1, err);
    va_start(arguments, format);
    if (made)
        vsnprintf(made, bytes, format, arguments);
    va_end(arguments);
    return made;
}

static void im_free_blocks(bags_import_arena *arena, im_block *block) {
    while (block) {
        im_block *next = block->next;
        im_resize(&arena->allocator, block, block->size, 0);
        block = next;
    }
}

void bags_import_reset(bags_import_arena *arena) {
    im_block *block = (im_block *)arena->blocks;
    if (!block)
        return;
    im_free_blocks(arena, block->next);
    block->next = NULL;
    arena->used = IM_HEADER;
}

void bags_import_free(bags_import_arena *arena) {
    im_free_blocks(arena, (im_block *)arena->blocks);
    arena->blocks = NULL;
    arena->used = 0;
}

/* ---- files ---- */

static bags_code im_system(
    bags_error *err, int error, const char *path, const char *doing) {
    bags_code code = error == ENOENT || error == ENOTDIR ? BAGS_ERROR_MISSING
                     : error == ENOMEM                   ? BAGS_ERROR_MEMORY
                                                         : BAGS_ERROR_IO;
    bags_fail(err, code, "%s: cannot %s: %s", path, doing,
        error == ENXIO ? "not a regular file" : strerror(error));
    if (err)
        err->system = error;
    return code;
}

bags_code bags_import_file_open(
    bags_import_file *file, const char *path, bags_error *err) {
    const bags_io *io = bags_io_local();
    void *handle = NULL;
    uint64_t size = 0;
    int error = io->open(io->user, path, BAGS_IO_READ, &handle);
    if (error)
        return im_system(err, error, path, "open");
    error = io->size(io->user, handle, &size);
    if (error) {
        io->close(io->user, handle);
        return im_system(err, error, path, "stat");
    }
    file->path = path;
    file->handle = handle;
    file->size = size;
    return BAGS_OK;
}

bags_code bags_import_file_read(const bags_import_file *file, uint64_t offset,
    void *data, size_t size, bags_error *err) {
    const bags_io *io = bags_io_local();
    size_t done = 0, part = 1;
    while (done < size && part > 0) {
        part = 0;
        int error = io->read_at(io->user, file->handle, offset + done,
            (char *)data + done, size - done, &part);
        if (error)
            return im_system(err, error, file->path, "read");
        done += part;
    }
    if (done < size)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: ends at byte %" PRIu64 " (expected %" PRIu64
            " bytes at %" PRIu64 ")",
            file->path, offset + done, (uint64_t)size, offset);
    return BAGS_OK;
}

void bags_import_file_close(bags_import_file *file) {
    const bags_io *io = bags_io_local();
    if (file->handle)
        io->close(io->user, file->handle);
    file->handle = NULL;
}

bags_code bags_import_file_load(const char *path, uint64_t limit,
    bags_buffer *buffer, bags_view *out, bags_error *err) {
    bags_import_file file;
    bags_code code = bags_import_file_open(&file, path, err);
    if (code)
        return code;
    if (file.size > limit || file.size >= SIZE_MAX)
        code = bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: too large (%" PRIu64 " bytes, maximum %" PRIu64 ")", path,
            file.size, limit);
    if (!code)
        code = bags_buffer_reserve(buffer, (size_t)file.size + 1, err);
    if (!code)
        code = bags_import_file_read(
            &file, 0, buffer->data, (size_t)file.size, err);
    if (!code) {
        buffer->data[file.size] = 0;
        out->data = buffer->data;
        out->size = (size_t)file.size;
    }
    bags_import_file_close(&file);
    return code;
}

size_t bags_import_peek(const char *path, void *data, size_t size) {
    bags_import_file file;
    if (bags_import_file_open(&file, path, NULL))
        return 0;
    if (size > file.size)
        size = (size_t)file.size;
    bags_code code = bags_import_file_read(&file, 0, data, size, NULL);
    bags_import_file_close(&file);
    return code ? 0 : size;
}

bags_path_kind bags_import_kind(const char *path) {
    const bags_io *io = bags_io_local();
    bags_path_kind kind = BAGS_PATH_NONE;
    if (io->kind(io->user, path, &kind))
        return BAGS_PATH_NONE;
    return kind;
}

bool bags_import_ends(const char *name, const char *ending) {
    size_t size = strlen(name), part = strlen(ending);
    if (part > size)
        return false;
    for (size_t i = 0; i < part; i++) {
        char a = name[size - part + i], b = ending[i];
        if ((a >= 'A' && a <= 'Z' ? a + 32 : a) !=
            (b >= 'A' && b <= 'Z' ? b + 32 : b))
            return false;
    }
    return true;
}

/* ---- the files of a source ---- */

static bool im_is_digit(char c) { return c >= '0' && c <= '9'; }

/* The order of names: numbers in them by value; equal ones as bytes. */
int bags_import_compare(const void *left, const void *right) {
    const char *a = *(const char *const *)left;
    const char *b = *(const char *const *)right;
    const char *whole_a = a, *whole_b = b;
    while (*a && *b) {
        if (!im_is_digit(*a) || !im_is_digit(*b)) {
            if (*a != *b)
                break;
            a++;
            b++;
            continue;
        }
        a += strspn(a, "0");
        b += strspn(b, "0");
        size_t digits_a = strspn(a, "0123456789");
        size_t digits_b = strspn(b, "0123456789");
        if (digits_a != digits_b)
            return digits_a < digits_b ? -1 : 1;
        int order = memcmp(a, b, digits_a);
        if (order)
            return order;
        a += digits_a;
        b += digits_b;
    }
    if (*a != *b)
        return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
    return strcmp(whole_a, whole_b);
}

/* True if a name is what a pattern means, in which * is any bytes. */
static bool im_matches(const char *pattern, const char *name) {
    const char *star = NULL, *tried = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            tried = name;
        } else if (*pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++tried;
        } else {
            return false;
        }
    }
    return pattern[strspn(pattern, "*")] == 0;
}

/* The part -00003-of-00010 of a name: where it is and its two numbers. */
static const char *im_shard_part(
    const char *name, uint64_t numbers[2], size_t *size) {
    const char *found = NULL;
    for (const char *of = name; (of = strstr(of, "-of-")) != NULL; of++) {
        const char *start = of;
        size_t after = strspn(of + 4, "0123456789");
        while (start > name && im_is_digit(start[-1]))
            start--;
        if (start == of || start == name || start[-1] != '-' || after == 0 ||
            after > 18 || of - start > 18)
            continue;
        found = start - 1;
        *size = (size_t)(of - found) + 4 + after;
        numbers[0] = strtoull(start, NULL, 10);
        numbers[1] = strtoull(of + 4, NULL, 10);
    }
    return found;
}

typedef struct im_listing {
    const char *pattern; /* NULL: any */
    bool (*accept)(const char *name);
    bags_import_arena *arena;
    bags_buffer names;
    size_t count;
    bags_error *err;
} im_listing;

static int im_list(void *user, const char *name) {
    im_listing *listing = (im_listing *)user;
    if (name[0] == '.' ||
        !(listing->pattern ? im_matches(listing->pattern, name)
                           : listing->accept(name)))
        return 0;
    size_t size = (listing->count + 1) * sizeof(char *);
    char *copy =
        bags_import_text(listing->arena, name, strlen(name), listing->err);
    if (!copy || bags_buffer_reserve(&listing->names, size, listing->err))
        return ENOMEM;
    ((char **)(void *)listing->names.data)[listing->count++] = copy;
    return 0;
}

/* If one of the names, which are sorted, has a part such as -00003-of-00010, they
 * must be one complete set. */
static bags_code im_check_set(
    char **names, size_t count, const char *path, bags_error *err) {
    uint64_t all[2] = {0, 0}, numbers[2] = {0, 0};
    size_t all_size = 0, size = 0;
    const char *first = im_shard_part(names[0], all, &all_size);
    size_t prefix = first ? (size_t)(first - names[0]) : 0;
    for (size_t i = 0; i < count; i++) {
        const char *part = im_shard_part(names[i], numbers, &size);
        if (!part && !first)
            continue;
        if (!part || !first || numbers[1] != all[1] ||
            (size_t)(part - names[i]) != prefix ||
            memcmp(names[i], names[0], prefix) != 0 ||
            strcmp(part + size, first + all_size) != 0)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: %.200s and %.200s are not of one set of files; import "
                "them one after the other, with patterns such as \"train-*\"",
                path, names[0], names[i]);
        if (numbers[0] != i)
            return bags_fail(err, BAGS_ERROR_GAP,
                "%s: file %" PRIu64 " of %" PRIu64 " is missing (next: %.200s)",
                path, (uint64_t)i, all[1], names[i]);
    }
    if (first && count != all[1])
        return bags_fail(err, BAGS_ERROR_GAP,
            "%s: files are missing (found %" PRIu64 " of %" PRIu64 ")", path,
            (uint64_t)count, all[1]);
    return BAGS_OK;
}

/* List the names that a path means. *directory becomes where they are; NULL: the
 * path is a file. */
static bags_code im_find(
    im_listing *listing, const char *path, const char **directory) {
    const bags_io *io = bags_io_local();
    bags_path_kind kind = bags_import_kind(path);
    *directory = kind == BAGS_PATH_DIRECTORY ? path : NULL;
    if (kind == BAGS_PATH_FILE)
        return BAGS_OK;
    if (kind == BAGS_PATH_NONE) {
        const char *slash = strrchr(path, '/');
        size_t size = slash ? (size_t)(slash - path) : 0;
        listing->pattern = slash ? slash + 1 : path;
        if (!strchr(listing->pattern, '*'))
            return im_system(listing->err, ENOENT, path, "open");
        *directory = slash && size == 0 ? "/" : ".";
        if (size)
            *directory =
                bags_import_text(listing->arena, path, size, listing->err);
        if (!*directory)
            return BAGS_ERROR_MEMORY;
    }
    int error = io->list(io->user, *directory, im_list, listing);
    return error ? im_system(listing->err, error, *directory, "list") : BAGS_OK;
}

static im_listing im_start(bags_import_arena *arena,
    bool (*accept)(const char *name), bags_error *err) {
    im_listing listing;
    memset(&listing, 0, sizeof listing);
    listing.accept = accept;
    listing.arena = arena;
    listing.err = err;
    listing.names.resize = arena->allocator.resize;
    listing.names.user = arena->allocator.user;
    return listing;
}

bags_code bags_import_files(const char *path, bool (*accept)(const char *name),
    bags_import_arena *arena, char ***paths, size_t *count, bags_error *err) {
    im_listing listing = im_start(arena, accept, err);
    const char *directory;
    bags_code code = im_find(&listing, path, &directory);
    size_t length = directory ? listing.count : 1;
    char **names = (char **)(void *)listing.names.data, **out = NULL;
    if (!code && length == 0)
        code = bags_fail(
            err, BAGS_ERROR_MISSING, "%s: no file of this format in it", path);
    if (!code && directory) {
        qsort(names, length, sizeof *names, bags_import_compare);
        code = im_check_set(names, length, path, err);
    }
    if (!code) {
        out = (char **)bags_import_alloc(arena, length, sizeof *out, err);
        code = out ? BAGS_OK : BAGS_ERROR_MEMORY;
    }
    for (size_t i = 0; !code && i < length; i++) {
        out[i] = !directory
                     ? bags_import_format(arena, err, "%s", path)
                     : bags_import_format(arena, err, "%s/%s",
                           strcmp(directory, "/") ? directory : "", names[i]);
        code = out[i] ? BAGS_OK : BAGS_ERROR_MEMORY;
    }
    bags_buffer_free(&listing.names);
    if (code)
        return code;
    *paths = out;
    *count = length;
    return BAGS_OK;
}

const char *bags_import_base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool bags_import_has_files(const char *path, bool (*accept)(const char *name)) {
    bags_import_arena arena = bags_import_arena_start(NULL);
    im_listing listing = im_start(&arena, accept, NULL);
    const char *directory;
    bags_code code = im_find(&listing, path, &directory);
    char **names = (char **)(void *)listing.names.data;
    bool found = !code && !directory && accept(bags_import_base(path));
    for (size_t i = 0; !code && i < listing.count && !found; i++)
        found = accept(names[i]);
    bags_buffer_free(&listing.names);
    bags_import_free(&arena);
    return found;
}

/* ---- names and types ---- */

char *bags_import_name(
    bags_import_arena *arena, const void *name, size_t size, bags_error *err) {
    char *made =
        bags_import_text(arena, size ? name : "_", size ? size : 1, err);
    if (!made)
        return NULL;
    size_t bad = 0;
    for (char *at = made, *end = made + size;
         !bags_utf8_valid(at, (size_t)(end - at), &bad); at += bad + 1)
        at[bad] = '_';
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)made[i] < 0x20 || made[i] == 0x7F ||
            strchr("/\\:*?\"<>|", made[i]) || (i == 0 && made[i] == '.'))
            made[i] = '_';
    return made;
}

/* A field's name in the source and in the dataset. */
typedef struct im_name {
    const char *old, *made;
} im_name;

static int im_compare_made(const void *left, const void *right) {
    return strcmp(
        ((const im_name *)left)->made, ((const im_name *)right)->made);
}

bags_code bags_import_names(bags_field *fields, size_t count, const char *path,
    bags_import_arena *arena, bags_error *err) {
    im_name *names =
        (im_name *)bags_import_alloc(arena, count, sizeof *names, err);
    if (!names)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < count; i++) {
        names[i].old = fields[i].name;
        names[i].made =
            bags_import_name(arena, names[i].old, strlen(names[i].old), err);
        if (!names[i].made)
            return BAGS_ERROR_MEMORY;
        fields[i].name = names[i].made;
    }
    qsort(names, count, sizeof *names, im_compare_made);
    for (size_t i = 1; i < count; i++)
        if (strcmp(names[i - 1].made, names[i].made) == 0)
            return bags_fail(err, BAGS_ERROR_FIELD,
                "%s: fields \"%.100s\" and \"%.100s\" would both be named "
                "\"%.100s\"",
                path, names[i - 1].old, names[i].old, names[i].made);
    return BAGS_OK;
}

const char *bags_import_magic(const void *data, size_t size) {
    static const struct im_magic {
        const char *type;
        size_t at, size;
        const char *bytes;
    } magics[] = {
        {"npy", 0, 6, "\x93NUMPY"},
        {"jpeg", 0, 3, "\xFF\xD8\xFF"},
        {"png", 0, 8, "\x89PNG\r\n\x1A\n"},
        {"mp4", 4, 4, "ftyp"},
        {"webm", 0, 4, "\x1A\x45\xDF\xA3"},
    };
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
        if (size >= magics[i].at + magics[i].size &&
            memcmp((const char *)data + magics[i].at, magics[i].bytes,
                magics[i].size) == 0)
            return magics[i].type;
    return NULL;
}

void bags_import_guess_add(
    bags_import_guess *guess, const void *data, size_t size, bool all) {
    const unsigned char *text = (const unsigned char *)data;
    const char *magic = bags_import_magic(data, size);
    guess->magic = !guess->started || guess->magic == magic ? magic : NULL;
    guess->started = true;
    guess->not_text =
        guess->not_text || !all || magic || !bags_utf8_valid(data, size, NULL);
    for (size_t i = 0; i < size && !guess->not_text; i++)
        guess->not_text =
            (text[i] < 0x20 && !(text[i] && strchr("\t\n\r", text[i]))) ||
            text[i] == 0x7F;
}

const char *bags_import_guess_type(const bags_import_guess *guess) {
    return guess->magic                         ? guess->magic
           : guess->started && !guess->not_text ? "utf8"
                                                : "bytes";
}
