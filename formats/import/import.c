/*
 * import.c - functions shared by the importers: sources, memory, files, fields. No
 * library.
 */
#include "import.h"
#include "text.h"
#include "try.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#ifndef _WIN32
#include <dlfcn.h>
#endif

#define IM_WINDOW ((uint64_t)1 << 20) /* bytes of a file read at a time */

/*
 * A source has two phases; `opened` is the second. Memory belongs to the phase that
 * allocates it, so importers free nothing:
 *
 *     bags_source_open          bags_source_read, once per datapoint
 *         |                         |
 *     importer->open            importer->read
 *     arena: until the source   scratch: until the next datapoint
 *     is closed
 *
 * Files are read at explicit offsets through a window that importers view. Reading a
 * source in order costs one read per MiB.
 */
/* ---- errors ---- */

bags_code bags_source_fail(bags_source *s, bags_code code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    bags_vfail(s->err, code, format, arguments);
    va_end(arguments);
    return bags_prefix(s->err, code, "%s: ", s->where);
}

bags_code bags_source_no_memory(bags_source *s) {
    s->no_memory = true;
    return bags_fail(s->err, BAGS_ERROR_MEMORY, "out of memory");
}

/* ---- memory ---- */

#define IM_ALIGN 16
#define IM_BLOCK 4096 /* bytes of the first block */

/* Blocks form a list, newest first. The allocated bytes follow the struct. */
typedef struct im_block {
    struct im_block *next;
    size_t size; /* including this header */
} im_block;

#define IM_HEADER ((sizeof(im_block) + IM_ALIGN - 1) / IM_ALIGN * IM_ALIGN)

/* Allocate memory without zeroing it. */
static void *im_take(bags_source *s, size_t count, size_t size) {
    bags_import_arena *arena = s->opened ? &s->scratch : &s->arena;
    im_block *block = (im_block *)arena->blocks;
    if (size && count > (SIZE_MAX / 4 - IM_ALIGN - IM_HEADER) / size) {
        bags_source_no_memory(s);
        return NULL;
    }
    size_t bytes = (count * size + IM_ALIGN - 1) / IM_ALIGN * IM_ALIGN;
    if (!block || block->size - arena->used < bytes) {
        size_t least = IM_HEADER + bytes;
        size_t wanted = block ? 2 * block->size : IM_BLOCK;
        if (wanted < least || wanted > SIZE_MAX / 4)
            wanted = least;
        block = (im_block *)s->allocator.resize(s->allocator.user, NULL, 0, wanted);
        if (!block) {
            bags_source_no_memory(s);
            return NULL;
        }
        block->next = (im_block *)arena->blocks;
        block->size = wanted;
        arena->blocks = block;
        arena->used = IM_HEADER;
    }
    void *made = (char *)block + arena->used;
    arena->used += bytes;
    return made;
}

/* Free a list of blocks, from this one to the oldest. */
static void im_free_blocks(const bags_allocator *allocator, im_block *block) {
    while (block) {
        im_block *next = block->next;
        allocator->resize(allocator->user, block, block->size, 0);
        block = next;
    }
}

/* The largest block of the scratch is kept, since datapoints usually have similar
 * sizes. */
static void im_reset_scratch(bags_source *s) {
    im_block *block = (im_block *)s->scratch.blocks;
    if (!block)
        return;
    im_free_blocks(&s->allocator, block->next);
    block->next = NULL;
    s->scratch.used = IM_HEADER;
}

void bags_source_scratch(bags_source *s, bool on) {
    if (on)
        im_reset_scratch(s);
    s->opened = on;
}

void *bags_source_alloc(bags_source *s, size_t count, size_t size) {
    void *made = im_take(s, count, size);
    return made ? memset(made, 0, count * size) : NULL;
}

/* No capacity is stored: an array is full when it has 1, 2, 4, ... elements. Old arrays
 * stay in the arena and at most double the memory. */
void *bags_source_grow(bags_source *s, void *array, size_t count, size_t size) {
    /* The capacity is the next power of two. */
    if (count & (count - 1))
        return array;
    void *grown = bags_source_alloc(s, count ? 2 * count : 1, size);
    if (grown && count)
        memcpy(grown, array, count * size);
    return grown;
}

char *bags_source_text(bags_source *s, const void *text, size_t size) {
    char *made = (char *)im_take(s, size + 1, 1);
    if (made && size)
        memcpy(made, text, size);
    if (made)
        made[size] = 0;
    return made;
}

static char *im_format(bags_source *s, const char *format, va_list arguments)
    BAGI_PRINTF(2, 0);

static char *im_format(bags_source *s, const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int size = vsnprintf(NULL, 0, format, again);
    va_end(again);
    size_t bytes = (size_t)(size < 0 ? 0 : size) + 1;
    char *made = (char *)bags_source_alloc(s, bytes, 1);
    if (made)
        vsnprintf(made, bytes, format, arguments);
    return made;
}

char *bags_source_format(bags_source *s, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *made = im_format(s, format, arguments);
    va_end(arguments);
    return made;
}

typedef struct im_owned {
    bags_buffer buffer; /* the first member */
    struct im_owned *next;
} im_owned;

/* The scratch loses its capacity between datapoints, so buffers always belong to the
 * first phase. */
bags_code bags_source_reserve(bags_source *s, bags_buffer **buffer, size_t size) {
    if (!*buffer) {
        bool opened = s->opened;
        s->opened = false; /* until the source is closed */
        im_owned *owned = (im_owned *)bags_source_alloc(s, 1, sizeof *owned);
        s->opened = opened;
        if (!owned)
            return BAGS_ERROR_MEMORY;
        owned->buffer = bags_buffer_of(&s->allocator);
        owned->next = (im_owned *)s->buffers;
        s->buffers = owned;
        *buffer = &owned->buffer;
    }
    return size < SIZE_MAX ? bags_buffer_reserve(*buffer, size + 1, s->err)
                           : bags_source_no_memory(s);
}

/* ---- content left out ---- */

/* Nothing is reported while datapoints are read: open has already reported everything
 * once. */
void bags_source_note(bags_source *s, const char *path, const char *format, ...) {
    va_list arguments;
    if (!s->options.note)
        return;
    va_start(arguments, format);
    const char *text = im_format(s, format, arguments);
    va_end(arguments);
    const char *note = text ? bags_source_format(s, "%s: %s", path, text) : NULL;
    if (note)
        s->options.note(s->options.user, note);
}

void bags_source_metadata(
    bags_source *s, const void *data, size_t size, const char *name) {
    const bags_view text = {(const unsigned char *)data, size};
    if (format_is_metadata(text))
        s->metadata = bags_source_text(s, (const char *)data, size);
    else
        bags_source_leave_out(s, "metadata value", 1, "%s", name);
}

bags_code bags_source_metadata_file(bags_source *s, const char *directory) {
    const char *path = bags_source_format(s, "%s/info.json", directory);
    bags_view file;
    if (!path)
        return BAGS_ERROR_MEMORY;
    if (bags_import_kind(path, NULL) != BAGS_PATH_FILE)
        return BAGS_OK;
    bags_code code = bags_source_load(s, path, FORMAT_METADATA_MOST, &file);
    if (code == BAGS_OK)
        bags_source_metadata(s, file.data, file.size, "info.json");
    else if (code == BAGS_ERROR_LIMIT)
        bags_source_leave_out(s, "metadata value", 1, "info.json");
    return code == BAGS_ERROR_LIMIT ? BAGS_OK : code;
}

void bags_source_leave_out(
    bags_source *s, const char *what, uint64_t count, const char *format, ...) {
    size_t i = 0;
    if (s->opened)
        return;
    while (i < s->left_out_count && strcmp(s->left_out[i].what, what) != 0)
        i++;
    if (i == s->left_out_count) {
        bags_left_out *grown =
            (bags_left_out *)bags_source_grow(s, s->left_out, i, sizeof *grown);
        if (!grown)
            return;
        s->left_out = grown;
        memset(&grown[i], 0, sizeof *grown);
        grown[i].what = what;
        s->left_out_count++;
    }
    bags_left_out *kind = &s->left_out[i];
    kind->count += count;
    if (kind->names_count++ >= BAGS_LEFT_OUT_NAMES)
        return;
    va_list arguments;
    va_start(arguments, format);
    kind->names[kind->names_count - 1] = im_format(s, format, arguments);
    va_end(arguments);
}

char *bags_source_unit(bags_source *s, const char *name, const char *unit) {
    static const char *const words[][2] = {{"Y", "years"}, {"M", "months"},
        {"W", "weeks"}, {"D", "days"}, {"h", "hours"}, {"m", "minutes"}};
    size_t digits = unit ? strspn(unit, "0123456789") : 0;
    const char *word = unit ? unit + digits : NULL;
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i][0]) == 0)
            word = words[i][1];
    return name && unit
               ? bags_source_format(s, "%s_%.*s%s", name, (int)digits, unit, word)
               : NULL;
}

/* ---- files ---- */

/* Only local files are imported; a source on a server must be copied first. */
static bags_code im_open(bags_import_file *file, const char *path, bags_error *err) {
    const bags_io *io = bags_io_local();
    int error = io->open(io->user, path, BAGS_IO_READ, &file->handle);
    if (error)
        return bags_fail_io(NULL, error, path, "open", err);
    file->path = path;
    error = io->size(io->user, file->handle, &file->size);
    return error ? bags_fail_io(NULL, error, path, "stat", err) : BAGS_OK;
}

static void im_close(bags_import_file *file) {
    const bags_io *io = bags_io_local();
    if (file->mapped)
        io->unmap(io->user, file->data, (size_t)file->size);
    if (file->handle)
        io->close(io->user, file->handle);
    file->handle = NULL;
    file->mapped = false;
}

void bags_source_close_file(bags_source *s) {
    im_close(&s->file);
    s->file.data = NULL;
    s->file.window_size = 0;
    s->where = s->path;
}

/* `path` may point into `where`, hence memmove. */
bags_code bags_source_open_file(bags_source *s, const char *path) {
    size_t size = strlen(path) + 1;
    bags_source_close_file(s);
    FORMAT_TRY(bags_buffer_reserve(&s->where_buffer, size, s->err));
    s->where = (const char *)memmove(s->where_buffer.data, path, size);
    return im_open(&s->file, s->where, s->err);
}

/* Check that the file has these bytes, and that memory can hold them. */
static bags_code im_check(bags_source *s, uint64_t offset, uint64_t size) {
    if (offset > s->file.size || size > s->file.size - offset)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "%" PRIu64 " bytes at %" PRIu64 " are out of range (the file has %" PRIu64
            ")",
            size, offset, s->file.size);
    return size > SIZE_MAX / 4 ? bags_source_no_memory(s) : BAGS_OK;
}

/* A view outside the window moves the window to start at the view and include the bytes
 * that follow. */
bags_code bags_source_view(
    bags_source *s, uint64_t offset, uint64_t size, bags_view *out) {
    bags_import_file *file = &s->file;
    FORMAT_TRY(im_check(s, offset, size));
    out->size = (size_t)size;
    out->data = file->data ? file->data + offset : NULL;
    if (out->data)
        return BAGS_OK;
    if (!file->window.data || offset < file->window_start ||
        offset + size > file->window_start + file->window_size) {
        uint64_t more = size < IM_WINDOW ? IM_WINDOW : size;
        if (more > file->size - offset)
            more = file->size - offset;
        file->window_size = 0;
        FORMAT_TRY(bags_buffer_reserve(&file->window, (size_t)more + 1, s->err));
        FORMAT_TRY(bags_read(bags_io_local(), file->handle, file->path, offset,
            file->window.data, (size_t)more, s->err));
        file->window_start = offset;
        file->window_size = more;
        s->bytes += more;
        if (s->options.progress && !s->opened &&
            !s->options.progress(s->options.user, s->bytes))
            return bags_source_fail(s, BAGS_ERROR_IO, "stopped");
    }
    out->data = file->window.data + (offset - file->window_start);
    return BAGS_OK;
}

/* Copies bypass the window, because they are large and would evict small headers. */
bags_code bags_source_copy(
    bags_source *s, uint64_t offset, uint64_t size, bags_view *out) {
    bags_code code = im_check(s, offset, size);
    void *to = code ? NULL : im_take(s, (size_t)size, 1);
    if (!to)
        return code ? code : BAGS_ERROR_MEMORY;
    out->data = (const unsigned char *)to;
    out->size = (size_t)size;
    if (!s->file.data)
        return bags_read(bags_io_local(), s->file.handle, s->file.path, offset, to,
            out->size, s->err);
    memcpy(to, s->file.data + offset, out->size);
    return BAGS_OK;
}

bags_code bags_source_map(bags_source *s, bags_view *out) {
    bags_import_file *file = &s->file;
    const bags_io *io = bags_io_local();
    const void *data = NULL;
    if (io->map && !file->data && file->size > 0 && file->size <= SIZE_MAX / 4 &&
        !io->map(io->user, file->handle, (size_t)file->size, &data)) {
        file->data = (const unsigned char *)data;
        file->mapped = true;
    }
    return bags_source_view(s, 0, file->size, out);
}

/* The limit is checked before memory is allocated: the file may be anything. */
bags_code bags_source_load(
    bags_source *s, const char *path, uint64_t limit, bags_view *out) {
    bags_import_file file;
    memset(&file, 0, sizeof file);
    bags_code code = im_open(&file, path, s->err);
    if (!code && (file.size > limit || file.size >= SIZE_MAX))
        code = bags_fail(s->err, BAGS_ERROR_LIMIT,
            "%s: too large (%" PRIu64 " bytes, maximum %" PRIu64 ")", path, file.size,
            limit);
    if (!code)
        code = bags_buffer_reserve(&s->loaded, (size_t)file.size + 1, s->err);
    if (!code)
        code = bags_read(bags_io_local(), file.handle, file.path, 0, s->loaded.data,
            (size_t)file.size, s->err);
    im_close(&file);
    if (code)
        return code;
    s->loaded.data[file.size] = 0;
    out->data = s->loaded.data;
    out->size = (size_t)file.size;
    return BAGS_OK;
}

/* This takes no source, because importers are asked before one exists. */
size_t bags_import_peek(const char *path, void *data, size_t size) {
    bags_import_file file;
    memset(&file, 0, sizeof file);
    bags_code code = im_open(&file, path, NULL);
    if (!code && size > file.size)
        size = (size_t)file.size;
    if (!code)
        code = bags_read(bags_io_local(), file.handle, file.path, 0, data, size, NULL);
    im_close(&file);
    return code ? 0 : size;
}

bool bags_import_starts(const char *path, const void *data, size_t size) {
    char start[16];
    return size <= sizeof start && bags_import_peek(path, start, size) == size &&
           memcmp(start, data, size) == 0;
}

/* A path that cannot be examined has no format. */
bags_path_kind bags_import_kind(const char *path, const char *name) {
    const bags_io *io = bags_io_local();
    bags_path_kind kind = BAGS_PATH_NONE;
    size_t size = strlen(path) + (name ? strlen(name) : 0) + 2;
    char *full = (char *)malloc(size);
    if (!full)
        return kind;
    snprintf(full, size, name ? "%s/%s" : "%s", path, name);
    if (io->kind(io->user, full, &kind))
        kind = BAGS_PATH_NONE;
    free(full);
    return kind;
}

/* Only ASCII letters have case here, whatever the locale. */
static int im_lower(char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; }

bool bags_import_ends(const char *name, const char *endings) {
    size_t size = strlen(name);
    for (const char *at = endings; *at; at += strspn(at, " ")) {
        size_t part = strcspn(at, " "), i = 0;
        while (i < part && part <= size &&
               im_lower(name[size - part + i]) == im_lower(at[i]))
            i++;
        if (i == part)
            return true;
        at += part;
    }
    return false;
}

/* ---- the files of a source ---- */

static bool im_is_digit(char c) { return c >= '0' && c <= '9'; }

/* Compare names, with numbers in them by value; if these are equal, compare bytes. */
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

/* True if a name matches a pattern. * matches any bytes. */
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

/* Find a part such as -00003-of-00010 in a name: its position and its two numbers. */
static const char *im_shard_part(const char *name, uint64_t numbers[2], size_t *size) {
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

/* If one of the sorted names has a part such as -00003-of-00010, together they must be
 * one complete set. */
static bags_code im_check_set(bags_source *s, char **names, size_t count) {
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
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "%.200s and %.200s are not of one set of files; import "
                "them one after the other, with patterns such as \"train-*\"",
                names[0], names[i]);
        if (numbers[0] != i)
            return bags_source_fail(s, BAGS_ERROR_GAP,
                "file %" PRIu64 " of %" PRIu64 " is missing (next: %.200s)",
                (uint64_t)i, all[1], names[i]);
    }
    if (first && count != all[1])
        return bags_source_fail(s, BAGS_ERROR_GAP,
            "files are missing (found %" PRIu64 " of %" PRIu64 ")", (uint64_t)count,
            all[1]);
    return BAGS_OK;
}

/* The files that a path refers to. */
typedef struct im_listing {
    bags_source *s;      /* NULL: only `found` matters */
    const char *pattern; /* NULL: any */
    bool (*accept)(const char *name);
    char **names;
    size_t count;
    bool found; /* an accepted name was found */
} im_listing;

/* Handle a name in the directory. Report the name if it is not accepted, unless the
 * user's pattern excluded it. */
static int im_list(void *user, const char *name) {
    im_listing *listing = (im_listing *)user;
    if (name[0] == '.' || !(listing->pattern ? im_matches(listing->pattern, name)
                                             : listing->accept(name))) {
        if (listing->s && !listing->pattern)
            bags_source_leave_out(listing->s, "other file", 1, "%s", name);
        return 0;
    }
    listing->found = listing->found || listing->accept(name);
    if (!listing->s)
        return 0;
    listing->names = (char **)bags_source_grow(
        listing->s, listing->names, listing->count, sizeof(char *));
    char *copy =
        listing->names ? bags_source_text(listing->s, name, strlen(name)) : NULL;
    if (!copy)
        return ENOMEM;
    listing->names[listing->count++] = copy;
    return 0;
}

/* An existing path is a file or directory, even if its name contains a *. */
static bags_code im_find(im_listing *listing, const char *path, bags_error *err) {
    const bags_io *io = bags_io_local();
    bags_path_kind kind = bags_import_kind(path, NULL);
    char *parent = NULL;
    if (kind == BAGS_PATH_FILE) {
        listing->found = listing->accept(bags_import_base(path));
        return BAGS_OK;
    }
    if (kind == BAGS_PATH_NONE) {
        listing->pattern = bags_import_base(path);
        if (!strchr(listing->pattern, '*'))
            return bags_fail_io(NULL, ENOENT, path, "open", err);
        size_t size = (size_t)(listing->pattern - path);
        parent = (char *)malloc(size + sizeof "./");
        if (!parent)
            return bags_fail_io(NULL, ENOMEM, path, "list", err);
        memcpy(parent, size ? path : "./", size ? size : 2);
        parent[size ? size : 2] = 0;
    }
    int error = io->list(io->user, parent ? parent : path, im_list, listing);
    bags_code code =
        error ? bags_fail_io(NULL, error, parent ? parent : path, "list", err)
              : BAGS_OK;
    free(parent);
    return code;
}

/* The names are in a directory: the path itself, or the part before a pattern. */
bags_code bags_source_files(bags_source *s, bool (*accept)(const char *name)) {
    im_listing listing;
    memset(&listing, 0, sizeof listing);
    listing.s = s;
    listing.accept = accept;
    bags_code code = im_find(&listing, s->path, s->err);
    if (code)
        return code;
    bool one = bags_import_kind(s->path, NULL) == BAGS_PATH_FILE;
    s->path_count = one ? 1 : listing.count;
    if (s->path_count == 0)
        return bags_source_fail(s, BAGS_ERROR_MISSING, "no file of this format in it");
    s->paths = (char **)bags_source_alloc(s, s->path_count, sizeof *s->paths);
    if (!s->paths)
        return BAGS_ERROR_MEMORY;
    if (!one) {
        qsort(listing.names, listing.count, sizeof *s->paths, bags_import_compare);
        code = im_check_set(s, listing.names, listing.count);
    }
    size_t before =
        listing.pattern ? (size_t)(listing.pattern - s->path) : strlen(s->path);
    for (size_t i = 0; !code && i < s->path_count; i++) {
        s->paths[i] = one ? bags_source_format(s, "%s", s->path)
                          : bags_source_format(s, "%.*s%s%s", (int)before, s->path,
                                listing.pattern ? "" : "/", listing.names[i]);
        code = s->paths[i] ? BAGS_OK : BAGS_ERROR_MEMORY;
    }
    return code;
}

bags_code bags_source_next_file(bags_source *s) {
    s->ended = s->path_next == s->path_count;
    return s->ended ? BAGS_OK : bags_source_open_file(s, s->paths[s->path_next++]);
}

/* The names are not collected, so this cannot run out of memory. */
bool bags_import_has_files(const char *path, bool (*accept)(const char *name)) {
    im_listing listing;
    memset(&listing, 0, sizeof listing);
    listing.accept = accept;
    return !im_find(&listing, path, NULL) && listing.found;
}

bags_code bags_import_recognize(const bags_importer *const *importers, const char *path,
    size_t *found, bags_error *err) {
    bags_error unused;
    const bags_importer *one = NULL;
    err = err ? err : &unused;
    for (size_t i = 0; importers[i]; i++) {
        if (!importers[i]->detect || !importers[i]->detect(path))
            continue;
        if (one)
            return bags_fail(err, BAGS_ERROR_ARGUMENT,
                "%s: is it of format %s or %s? pass --from KIND", path, one->name,
                importers[i]->name);
        one = importers[i];
        *found = i;
    }
    if (one)
        return BAGS_OK;
    if (bags_import_kind(path, NULL) == BAGS_PATH_NONE) {
        if (strchr(path, '*'))
            return bags_fail(
                err, BAGS_ERROR_MISSING, "%s: no file has such a name", path);
        bags_fail(
            err, BAGS_ERROR_MISSING, "%s: cannot open: %s", path, strerror(ENOENT));
        err->system = ENOENT;
        return err->code;
    }
    if (bags_import_kind(path, "spec.json") != BAGS_PATH_NONE)
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%s: is a dataset already, or was exported; use `bags copy` or `bags pack`",
            path);
    if (bags_import_ends(path, ".jsonl"))
        return bags_fail(err, BAGS_ERROR_TYPE,
            "%s: lines of JSON are packed: use `bags pack`", path);
    bags_fail(err, BAGS_ERROR_TYPE,
        "%s: unknown format; pass --from KIND if it is one of:", path);
    for (size_t i = 0; importers[i]; i++)
        bags_suffix(err, " %s", importers[i]->name);
    return err->code;
}

const char *bags_import_base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- values ---- */

const char *bags_import_magic(const void *data, size_t size) {
    static const struct im_magic {
        const char *type;
        size_t at, size;
        const char *bytes;
    } magics[] = {
        {"npy", 0, 6, "\x93NUMPY"},
        {"jpeg", 0, 3, "\xFF\xD8\xFF"},
        {"png", 0, 8, "\x89PNG\r\n\x1A\n"},
        {"webp", 8, 4, "WEBP"},
        {"mp4", 4, 4, "ftyp"},
        {"webm", 0, 4, "\x1A\x45\xDF\xA3"},
    };
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
        if (size >= magics[i].at + magics[i].size &&
            memcmp((const char *)data + magics[i].at, magics[i].bytes,
                magics[i].size) == 0)
            return magics[i].at < 8 || !memcmp(data, "RIFF", 4) ? magics[i].type : NULL;
    return NULL;
}

#ifdef _WIN32

void *bags_import_symbol(
    const char *const *libraries, const char *symbol, bags_error *err) {
    (void)symbol;
    bags_fail(err, BAGS_ERROR_MISSING,
        "%s: libraries are not opened at run time on Windows", libraries[0]);
    return NULL;
}

#else

void *bags_import_symbol(
    const char *const *libraries, const char *symbol, bags_error *err) {
    void *library = NULL;
    for (size_t i = 0; !library && libraries[i]; i++) {
        library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
        if (!library && i == 0)
            bags_fail(err, BAGS_ERROR_MISSING, "%s", dlerror());
    }
    void *found = library ? dlsym(library, symbol) : NULL;
    if (library && !found)
        bags_fail(err, BAGS_ERROR_MISSING, "%s", dlerror());
    return found;
}

#endif

bool bags_import_is_integer(bags_dtype dtype) {
    return dtype >= BAGS_DTYPE_UINT8 && dtype <= BAGS_DTYPE_INT64;
}

/* Shorter numbers are sign-extended. */
bags_value bags_import_integer(bags_dtype dtype, const void *data) {
    size_t bits = 8 * bags_dtype_size(dtype);
    uint64_t number = bags_load_bytes(data, bits / 8, false);
    if (dtype < BAGS_DTYPE_INT8)
        return bags_uint(number);
    if (bits < 64 && number >> (bits - 1) & 1)
        number |= UINT64_MAX << bits;
    return bags_int((int64_t)number);
}

/* ---- fields ---- */

/* NULL is accepted, so that callers need not check formatted text. */
void bags_source_field(bags_source *s, const char *name, const char *type) {
    bags_field *grown = name && type ? (bags_field *)bags_source_grow(
                                           s, s->fields, s->count, sizeof *grown)
                                     : NULL;
    if (!grown)
        return;
    s->fields = grown;
    s->fields[s->count].name = name;
    s->fields[s->count++].type = type;
}

char *bags_source_number_type(bags_source *s, bags_dtype dtype, size_t dims,
    const uint64_t *shape, bool sequence) {
    char text[24 * (BAGS_MAX_DIMS + 1)], *to = text;
    const char *end = sequence ? "[]" : "";
    if (dims == 0 && bags_import_is_integer(dtype))
        return bags_source_format(
            s, "%s%s", dtype < BAGS_DTYPE_INT8 ? "u64" : "i64", end);
    for (size_t i = 0; i < dims && i < BAGS_MAX_DIMS; i++)
        to += snprintf(to, 24, shape[i] == UINT64_MAX ? ",-1" : ",%" PRIu64, shape[i]);
    *to = 0;
    return bags_source_format(s, "array(%s%s)%s", bags_dtype_name(dtype), text, end);
}

/* Replace byte by byte until the rest is UTF-8: an invalid sequence becomes as many '_'
 * as it has bytes. */
void bags_import_name(const void *name, size_t size, char *out) {
    size_t bad = 0;
    if (size)
        memcpy(out, name, size);
    else
        out[size++] = '_';
    out[size] = 0;
    for (char *at = out; !bags_utf8_valid(at, (size_t)(out + size - at), &bad);
         at += bad + 1)
        at[bad] = '_';
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)out[i] < 0x20 || out[i] == 0x7F ||
            strchr("/\\:*?\"<>|", out[i]) || (i == 0 && out[i] == '.'))
            out[i] = '_';
}

/* A field's name in the source and in the dataset. */
typedef struct im_name {
    const char *made, *old;
} im_name;

/* Give all fields names that are valid file names, and make their entries. */
static bags_code im_finish_fields(bags_source *s) {
    im_name *names = (im_name *)bags_source_alloc(s, s->count, sizeof *names);
    s->entries = (bags_entry *)bags_source_alloc(s, s->count, sizeof *s->entries);
    s->values = (bags_value *)bags_source_alloc(s, s->count, sizeof *s->values);
    if (!names || !s->entries || !s->values)
        return BAGS_ERROR_MEMORY;
    for (size_t i = 0; i < s->count; i++) {
        size_t size = strlen(s->fields[i].name);
        char *made = (char *)bags_source_alloc(s, size + 2, 1);
        if (!made)
            return BAGS_ERROR_MEMORY;
        bags_import_name(s->fields[i].name, size, made);
        names[i].old = s->fields[i].name;
        names[i].made = s->fields[i].name = s->entries[i].field = made;
    }
    if (s->count)
        qsort(names, s->count, sizeof *names, format_compare_texts);
    for (size_t i = 1; i < s->count; i++)
        if (strcmp(names[i - 1].made, names[i].made) == 0)
            return bags_source_fail(s, BAGS_ERROR_FIELD,
                "fields \"%.100s\" and \"%.100s\" would both be named "
                "\"%.100s\"",
                names[i - 1].old, names[i].old, names[i].made);
    return BAGS_OK;
}

/* ---- columns: fields found by reading all datapoints ---- */

/* Columns are sorted by name, so that the dataset does not depend on the order in which
 * the source happens to mention them. */
bags_import_column *bags_source_column(
    bags_source *s, const void *name, size_t size, bool add) {
    size_t low = 0, high = s->column_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        bags_import_column *column = s->columns[middle];
        size_t both = column->size < size ? column->size : size;
        int order = both ? memcmp(column->name, name, both) : 0;
        if (order == 0 && column->size == size)
            return column;
        if (order < 0 || (order == 0 && column->size < size))
            low = middle + 1;
        else
            high = middle;
    }
    if (!add)
        return NULL;
    bags_import_column *made =
        (bags_import_column *)bags_source_alloc(s, 1, sizeof *made);
    char *copy = made ? bags_source_text(s, name, size) : NULL;
    if (copy)
        s->columns = (bags_import_column **)bags_source_grow(
            s, s->columns, s->column_count, sizeof *s->columns);
    if (!copy || !s->columns)
        return NULL;
    bags_import_column **to = s->columns + low;
    memmove(to + 1, to, (s->column_count++ - low) * sizeof *to);
    made->name = copy;
    made->size = size;
    return *to = made;
}

/* A single value of another kind is decisive: after it, neither the magic nor text is
 * possible again. */
void bags_import_guess(
    bags_import_column *column, const void *data, size_t size, bool all) {
    const unsigned char *text = (const unsigned char *)data;
    const char *magic = bags_import_magic(data, size);
    column->magic = !column->guessed || column->magic == magic ? magic : NULL;
    column->guessed = true;
    column->not_text =
        column->not_text || !all || magic || !bags_utf8_valid(data, size, NULL);
    for (size_t i = 0; i < size && !column->not_text; i++)
        column->not_text =
            (text[i] < 0x20 && !(text[i] && strchr("\t\n\r", text[i]))) ||
            text[i] == 0x7F;
}

const char *bags_import_guessed(const bags_import_column *column) {
    return column->magic                          ? column->magic
           : column->guessed && !column->not_text ? "utf8"
                                                  : "bytes";
}

/* Called after all datapoints were seen: only then is it known which columns are
 * missing from some. */
void bags_source_add_columns(
    bags_source *s, const char *(*type)(const bags_import_column *column)) {
    for (size_t i = 0; i < s->column_count; i++) {
        bags_import_column *column = s->columns[i];
        column->sequence = column->sequence || column->seen < s->length;
        column->last = 0;
        column->field = s->count;
        bags_source_field(s, column->name,
            bags_source_format(s, "%s%s", type(column), column->sequence ? "[]" : ""));
    }
}

/* ---- sources ---- */

/* The importer is also closed after a failure: open may have done half of its work. */
bags_source *bags_source_open(const bags_importer *importer, const char *path,
    const bags_source_options *options, bags_error *err) {
    const bags_allocator use = bags_allocator_of(options ? options->allocator : NULL);
    bags_source *s = (bags_source *)use.resize(use.user, NULL, 0, sizeof *s);
    if (!s) {
        bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        return NULL;
    }
    memset(s, 0, sizeof *s);
    s->importer = importer;
    s->allocator = use;
    if (options)
        s->options = *options;
    s->err = &s->error;
    s->where_buffer = s->loaded = s->file.window = bags_buffer_of(&s->allocator);
    s->path = s->where = bags_source_text(s, path, strlen(path));
    s->state = bags_source_alloc(s, 1, importer->state_size);
    bags_code code = s->path && s->state ? importer->open(s) : BAGS_ERROR_MEMORY;
    if (!code && s->no_memory)
        code = bags_source_no_memory(s);
    if (!code)
        code = im_finish_fields(s);
    s->opened = true;
    if (!code)
        return s;
    if (err)
        *err = s->error;
    bags_source_close(s);
    return NULL;
}

bags_code bags_source_read(
    bags_source *s, uint64_t index, const bags_entry **entries, bags_error *err) {
    *entries = NULL;
    im_reset_scratch(s);
    for (size_t i = 0; i < s->count; i++) {
        s->entries[i].values = &s->values[i];
        s->entries[i].count = 1;
    }
    s->ended = index >= s->length;
    s->damaged = false;
    bags_code code = s->importer->read(s, index);
    if (!code && s->no_memory)
        code = bags_source_no_memory(s);
    if (!code && !s->ended && !s->damaged)
        *entries = s->entries;
    if (code && err)
        *err = s->error;
    return code;
}

/* The importer is closed first, since it may use everything else. */
void bags_source_close(bags_source *s) {
    if (!s)
        return;
    if (s->state && s->importer->close)
        s->importer->close(s);
    im_close(&s->file);
    for (im_owned *owned = (im_owned *)s->buffers; owned; owned = owned->next)
        bags_buffer_free(&owned->buffer);
    bags_buffer_free(&s->where_buffer);
    bags_buffer_free(&s->loaded);
    bags_buffer_free(&s->file.window);
    im_free_blocks(&s->allocator, (im_block *)s->scratch.blocks);
    im_free_blocks(&s->allocator, (im_block *)s->arena.blocks);
    bags_allocator allocator = s->allocator;
    allocator.resize(allocator.user, s, sizeof *s, 0);
}
