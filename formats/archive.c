/*
 * archive.c - datasets inside zip and tar files, read in place. No library.
 *
 * The members become a read-only tree of files behind the hooks of bags.h:
 *
 *     zip   the directory at the end states name, size and the offset of a local
 *           header, after which the stored bytes are:
 *             header | bytes | header | bytes | ... | directory | end
 *     tar   header | bytes | header | bytes | ... | zeros
 *           The headers are read once, when the archive is opened.
 *
 * Both become one array of members, sorted by name. A directory is every name up to
 * a slash, so that those which the archive does not list exist, too.
 *
 * If the hooks below can map, everything is checked when the archive is opened, and
 * a member is mapped by adding its offset. Otherwise each request is expensive: the
 * end of the archive is kept, and the local header of a member is only read when it
 * is opened, together with what follows it and with its end, where a Bag has its
 * table. Nothing of an open archive changes, so threads need no locks.
 */
#include "formats.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 512           /* of tar */
#define LOCAL_SIZE 30       /* zip: a local header without its variable part */
#define ENTRY_SIZE 46       /* an entry of the directory */
#define END_SIZE 22         /* the record at the end */
#define END64_SIZE 56       /* the same of zip64 */
#define LOCATOR_SIZE 20     /* precedes END; finds END64 */
#define COMMENT_MOST 0xFFFF /* after END */
#define NAME_MOST 0xFFFF
#define PAX_MOST ((uint64_t)1 << 20)     /* bytes of one pax header */
#define FILLING_MOST ((uint64_t)1 << 20) /* of zeros after a tar's end */
#define STEP ((size_t)64 << 10)          /* bytes of a directory per read */
/* Of a remote member: its header, which bags_zip fills up to a page; its end. */
#define HEAD ((size_t)4096 + 512)
#define LAST ((size_t)16 << 10)
#define TAIL ((size_t)1 << 20) /* bytes at the end of a remote archive */

/* Windows accepts both slashes. */
#ifdef _WIN32
#define IS_SLASH(c) ((c) == '/' || (c) == '\\')
#else
#define IS_SLASH(c) ((c) == '/')
#endif

typedef struct archive_member {
    union {
        size_t at;        /* in bags_archive.names while that grows, */
        const char *text; /* then this. A directory's name ends in a slash */
    } name;
    uint32_t name_size;
    uint16_t error;  /* why it cannot be opened, as errno; 0: it can */
    bool located;    /* offset is that of the bytes, not of the local header */
    uint64_t offset; /* in the archive */
    uint64_t size;
    uint64_t stop; /* all of it is below this offset */
} archive_member;

/* Bytes of the archive that are in memory. */
typedef struct archive_window {
    bags_buffer buffer;
    uint64_t start;
    size_t size;
    size_t step; /* bytes per read */
} archive_window;

struct bags_archive {
    bags_buffer memory; /* of this struct */
    bags_buffer path_memory, names, members_memory;
    const char *path;
    size_t path_size;
    size_t names_size;
    archive_member *members;
    uint64_t length, max_members;
    bags_io base, io;
    void *file;
    uint64_t size;
    const unsigned char *map; /* or NULL */
    archive_window tail;      /* of a remote archive; otherwise empty */
};

/* An open member. */
typedef struct archive_file {
    bags_buffer memory; /* of this struct */
    bags_archive *archive;
    archive_member member;
    archive_window head, tail; /* of a remote archive */
} archive_file;

/* ---- bytes ---- */

/* A buffer of the caller's allocator. */
static bags_buffer archive_buffer(const bags_archive *a) {
    bags_buffer buffer = {NULL, 0, a->memory.resize, a->memory.user};
    return buffer;
}

static uint32_t load16(const unsigned char *p) {
    return (uint32_t)(p[0] | p[1] << 8);
}

static uint32_t load32(const unsigned char *p) {
    return load16(p) | load16(p + 2) << 16;
}

static uint64_t load64(const unsigned char *p) {
    return load32(p) | (uint64_t)load32(p + 4) << 32;
}

static bool is_marked(const unsigned char *p, unsigned a, unsigned b) {
    return p[0] == 'P' && p[1] == 'K' && p[2] == a && p[3] == b;
}

static bags_code archive_fail_system(
    const bags_archive *a, int error, const char *doing, bags_error *err) {
    bags_code code = error == ENOENT || error == ENOTDIR ? BAGS_ERROR_MISSING
                     : error == ENOMEM                   ? BAGS_ERROR_MEMORY
                                                         : BAGS_ERROR_IO;
    char why[512] = "";
    if (a->base.explain)
        a->base.explain(a->base.user, a->path, error, why, sizeof why);
    bags_fail(err, code, "%s: cannot %s: %s", a->path, doing,
        *why             ? why
        : error == ENXIO ? "not a regular file"
                         : strerror(error));
    err->system = error;
    return code;
}

static bags_code archive_fail_member(const bags_archive *a, bags_code code,
    const void *name, size_t size, const char *why, bags_error *err) {
    return bags_fail(err, code, "%s: member \"%.*s\": %s", a->path,
        size > 300 ? 300 : (int)size, (const char *)name, why);
}

static bags_code archive_fail_corrupt(const bags_archive *a,
    const archive_member *m, const char *why, bags_error *err) {
    return archive_fail_member(
        a, BAGS_ERROR_CORRUPT, m->name.text, m->name_size, why, err);
}

static bool window_has(const archive_window *w, uint64_t offset, size_t size) {
    return offset >= w->start && size <= w->size &&
           offset - w->start <= w->size - size;
}

/* Read bytes of the archive completely. */
static bags_code archive_read(const bags_archive *a, uint64_t offset,
    void *data, size_t size, bags_error *err) {
    unsigned char *to = (unsigned char *)data;
    while (size > 0) {
        size_t done = 0;
        int error =
            a->base.read_at(a->base.user, a->file, offset, to, size, &done);
        if (error)
            return archive_fail_system(a, error, "read", err);
        if (done == 0 || done > size)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: truncated while open (%" PRIu64 " bytes, was %" PRIu64 ")",
                a->path, offset, a->size);
        to += done;
        offset += done;
        size -= done;
    }
    return BAGS_OK;
}

/* View a part of the archive, which the caller knows to be within it, until the next
 * call with this window. */
static bags_code archive_bytes(const bags_archive *a, archive_window *w,
    uint64_t offset, size_t size, const unsigned char **out, bags_error *err) {
    static const unsigned char nothing[1] = {0};
    *out = nothing;
    if (size == 0)
        return BAGS_OK;
    if (window_has(&a->tail, offset, size)) {
        *out = a->tail.buffer.data + (offset - a->tail.start);
        return BAGS_OK;
    }
    if (!window_has(w, offset, size)) {
        uint64_t rest = a->size - offset;
        size_t part = size > w->step ? size : w->step;
        part = part > rest ? (size_t)rest : part;
        w->size = 0;
        bags_code code = bags_buffer_reserve(&w->buffer, part, err);
        if (!code)
            code = archive_read(a, offset, w->buffer.data, part, err);
        if (code)
            return code;
        w->start = offset;
        w->size = part;
    }
    *out = w->buffer.data + (offset - w->start);
    return BAGS_OK;
}

/* ---- members ---- */

static bool has_ending(const char *name, size_t size, const char *ending) {
    size_t length = strlen(ending);
    return size >= length && !memcmp(name + size - length, ending, length);
}

/* True for a file that readers of datasets open. */
static bool is_of_dataset(const char *name, size_t size) {
    return has_ending(name, size, ".bag") || has_ending(name, size, ".idx") ||
           has_ending(name, size, ".crc") ||
           has_ending(name, size, "spec.json");
}

/* Copy a name without empty and "." parts, and without a slash at the end. Returns
 * NULL, or why it is invalid. `to` may be `name`. */
static const char *name_clean(
    char *to, size_t *to_size, const char *name, size_t size) {
    size_t used = 0;
    if (size > 0 && name[0] == '/')
        return "outside the archive (an absolute name)";
    for (size_t start = 0, stop; start < size; start = stop + 1) {
        for (stop = start; stop < size && name[stop] != '/'; stop++)
            if (name[stop] == 0)
                return "a name with a zero byte";
        size_t part = stop - start;
        if (part == 0 || (part == 1 && name[start] == '.'))
            continue;
        if (part == 2 && name[start] == '.' && name[start + 1] == '.')
            return "outside the archive (a name with ..)";
        if (used > 0)
            to[used++] = '/';
        memmove(to + used, name + start, part);
        used += part;
    }
    *to_size = used;
    return NULL;
}

/* What the formats state about a member. */
typedef struct archive_found {
    const char *name;
    size_t name_size;
    uint64_t offset, size;
    bool directory, located;
    int error;       /* see archive_member */
    const char *why; /* the same in words */
} archive_found;

/* Add a member. One that cannot be read is only an error if a reader of datasets
 * would open it. */
static bags_code archive_add(
    bags_archive *a, const archive_found *found, bags_error *err) {
    size_t size = found->name_size;
    const size_t one = sizeof(archive_member);
    bags_code code = BAGS_ERROR_CORRUPT;
    if (a->length >= a->max_members)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: too many members (more than %" PRIu64 ")", a->path,
            a->max_members);
    if (bags_buffer_reserve(&a->names, a->names_size + size + 1, err) ||
        bags_buffer_reserve(
            &a->members_memory, (size_t)(a->length + 1) * one, err))
        return BAGS_ERROR_MEMORY;
    char *name = (char *)a->names.data + a->names_size;
    const char *why = name_clean(name, &size, found->name, size);
    if (!why && size > NAME_MOST)
        why = "the name is too long";
    else if (!why && size == 0 && !found->directory)
        why = "an empty name";
    else if (!why && found->directory && found->size > 0)
        why = "a directory with bytes";
    else if (!why && found->error && is_of_dataset(name, size)) {
        why = found->why;
        code = BAGS_ERROR_VALUE;
    }
    if (why)
        return archive_fail_member(
            a, code, found->name, found->name_size, why, err);
    if (found->directory && size > 0)
        name[size++] = '/';
    archive_member member;
    memset(&member, 0, sizeof member);
    member.name.at = a->names_size;
    member.name_size = (uint32_t)size;
    member.error = (uint16_t)(found->directory ? EISDIR : found->error);
    member.located = found->located;
    member.offset = found->offset;
    member.size = found->size;
    member.stop = a->size;
    memcpy(a->members_memory.data + (size_t)a->length++ * one, &member, one);
    a->names_size += size;
    return BAGS_OK;
}

/* The order of a member's name and of `name`, which `last` follows unless it is 0. */
static int name_order(
    const archive_member *m, const char *name, size_t size, int last) {
    size_t common = m->name_size < size ? m->name_size : size;
    int order = common ? memcmp(m->name.text, name, common) : 0;
    if (order || m->name_size < size)
        return order ? order : -1;
    if (m->name_size == size)
        return last ? -1 : 0;
    order = last ? (unsigned char)m->name.text[size] - last : 1;
    return order ? order : m->name_size > size + 1;
}

static int member_name_order(const void *x, const void *y) {
    const archive_member *b = (const archive_member *)y;
    return name_order((const archive_member *)x, b->name.text, b->name_size, 0);
}

static int member_offset_order(const void *x, const void *y) {
    const archive_member *a = (const archive_member *)x;
    const archive_member *b = (const archive_member *)y;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* The first member whose name is not below. */
static size_t archive_search(
    const bags_archive *a, const char *name, size_t size, int last) {
    size_t start = 0, stop = (size_t)a->length;
    while (start < stop) {
        size_t middle = start + (stop - start) / 2;
        if (name_order(&a->members[middle], name, size, last) < 0)
            start = middle + 1;
        else
            stop = middle;
    }
    return start;
}

/* True if member i is in the directory, or is its own entry. The empty name is the
 * archive. */
static bool is_below(
    const bags_archive *a, size_t i, const char *name, size_t size) {
    if (i >= a->length || size == 0)
        return i < a->length;
    const archive_member *m = &a->members[i];
    return m->name_size > size && m->name.text[size] == '/' &&
           !memcmp(m->name.text, name, size);
}

/* The member of this name, or NULL. */
static const archive_member *archive_find(
    const bags_archive *a, const char *name, size_t size) {
    size_t i = archive_search(a, name, size, 0);
    return i < a->length && !name_order(&a->members[i], name, size, 0)
               ? &a->members[i]
               : NULL;
}

/* The members are complete: sort them, and refuse duplicate names. */
static bags_code archive_sort(bags_archive *a, bags_error *err) {
    size_t length = (size_t)a->length;
    if (length > 0)
        qsort(a->members, length, sizeof *a->members, member_name_order);
    for (size_t i = 0; i < length; i++) {
        const archive_member *m = &a->members[i];
        if (m->error == EISDIR)
            continue;
        if (i > 0 && !member_name_order(m - 1, m))
            return archive_fail_corrupt(a, m, "duplicate", err);
        if (is_below(a, archive_search(a, m->name.text, m->name_size, '/'),
                m->name.text, m->name_size))
            return archive_fail_corrupt(
                a, m, "both a file and a directory", err);
    }
    return BAGS_OK;
}

/* ---- zip ---- */

/* The entries: offsets in the archive. */
typedef struct zip_directory {
    uint64_t start, stop, length;
    uint64_t shift; /* bytes before what its writer took for the start */
} zip_directory;

static bags_code zip_fail(
    const bags_archive *a, const char *why, bags_error *err) {
    return bags_fail(
        err, BAGS_ERROR_CORRUPT, "%s: invalid zip file: %s", a->path, why);
}

/* The record of zip64 at an offset, if it is one that ends at `stop`; else NULL. */
static bags_code zip_find_end64(const bags_archive *a, archive_window *w,
    uint64_t offset, uint64_t stop, const unsigned char **out,
    bags_error *err) {
    *out = NULL;
    if (offset > stop || stop - offset < END64_SIZE)
        return BAGS_OK;
    const unsigned char *p;
    bags_code code = archive_bytes(a, w, offset, END64_SIZE, &p, err);
    if (!code && is_marked(p, 6, 6) && load64(p + 4) == stop - offset - 12)
        *out = p;
    return code;
}

/* Find the directory by the record at `end`. */
static bags_code zip_find_directory(const bags_archive *a, archive_window *w,
    uint64_t end, zip_directory *out, bags_error *err) {
    const unsigned char *p;
    bags_code code = archive_bytes(a, w, end, END_SIZE, &p, err);
    if (code)
        return code;
    uint64_t disk = load16(p + 4), first = load16(p + 6);
    uint64_t here = load16(p + 8), length = load16(p + 10);
    uint64_t size = load32(p + 12), offset = load32(p + 16);
    bool wide = false;
    out->stop = end;
    if (end >= LOCATOR_SIZE) {
        code = archive_bytes(a, w, end - LOCATOR_SIZE, LOCATOR_SIZE, &p, err);
        if (code)
            return code;
        wide = is_marked(p, 6, 7);
    }
    if (wide) {
        uint64_t stop = end - LOCATOR_SIZE, at = load64(p + 8);
        if (load32(p + 4) != 0 || load32(p + 16) > 1)
            disk = 1;
        code = zip_find_end64(a, w, at, stop, &p, err);
        if (!code && !p && stop >= END64_SIZE) {
            at = stop - END64_SIZE; /* if bytes precede the archive */
            code = zip_find_end64(a, w, at, stop, &p, err);
        }
        if (code || !p)
            return code ? code : zip_fail(a, "no zip64 record", err);
        if ((length != 0xFFFF && length != load64(p + 32)) ||
            (size != UINT32_MAX && size != load64(p + 40)) ||
            (offset != UINT32_MAX && offset != load64(p + 48)))
            return zip_fail(a, "its two records of the end differ", err);
        disk = disk == 1 || load32(p + 16) != 0;
        first = load32(p + 20);
        here = load64(p + 24);
        length = load64(p + 32);
        size = load64(p + 40);
        offset = load64(p + 48);
        out->stop = at;
    }
    if (disk != 0 || first != 0 || here != length)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: a part of a zip file on several disks", a->path);
    if (size > out->stop || offset > out->stop - size)
        return zip_fail(a, "the directory is outside", err);
    if (length > size / ENTRY_SIZE)
        return zip_fail(a, "more members than fit into the directory", err);
    out->start = out->stop - size;
    out->shift = out->start - offset;
    out->length = length;
    return BAGS_OK;
}

/* Replace numbers of 32 bits that are saturated by those of the extra field of zip64.
 * False if they are missing. `extra` has been read; numbers are in its order. */
static bool zip_widen(const unsigned char *extra, size_t size,
    uint64_t *numbers[], size_t count) {
    const unsigned char *from = extra;
    size_t left = 0;
    for (size_t at = 0; size - at >= 4; at += 4 + load16(extra + at + 2)) {
        if (load16(extra + at + 2) > size - at - 4)
            break;
        if (load16(extra + at) != 1)
            continue;
        from = extra + at + 4;
        left = load16(extra + at + 2);
        break;
    }
    for (size_t i = 0; i < count; i++) {
        if (*numbers[i] != UINT32_MAX)
            continue;
        if (left < 8)
            return false;
        *numbers[i] = load64(from);
        from += 8;
        left -= 8;
    }
    return true;
}

/* Add the member of an entry that has been read. */
static bags_code zip_add(bags_archive *a, const unsigned char *p,
    const zip_directory *directory, bags_error *err) {
    unsigned flags = load16(p + 8), method = load16(p + 10), host = p[5];
    size_t name_size = load16(p + 28), extra = load16(p + 30);
    uint64_t packed = load32(p + 20), size = load32(p + 24);
    uint64_t offset = load32(p + 42), mode = load32(p + 38) >> 16;
    uint64_t *wide[3] = {&size, &packed, &offset};
    uint64_t stop = directory->start - directory->shift; /* of the members */
    const char *wrong = NULL;
    archive_found found;
    memset(&found, 0, sizeof found);
    found.name = (const char *)p + ENTRY_SIZE;
    found.name_size = name_size;
    found.directory = name_size > 0 && found.name[name_size - 1] == '/';
    if (!zip_widen(p + ENTRY_SIZE + name_size, extra, wide, 3))
        wrong = "no zip64 extra field";
    if (!found.directory && (flags & 0x2041)) {
        found.error = ENOTSUP;
        found.why = "encrypted; store it without a password";
    } else if (!found.directory && method != 0) {
        found.error = ENOTSUP;
        found.why = "compressed; it must be stored (zip -0)";
    } else if ((host == 3 || host == 19) && (mode & 0170000) == 0120000) {
        found.error = ENXIO;
        found.why = "a link; store the file itself";
    } else if (!found.directory && packed != size && !wrong) {
        wrong = "stored with two different sizes";
    }
    found.size = found.error ? packed : size;
    found.offset = directory->shift + offset;
    if (load16(p + 34) != 0 && !wrong)
        wrong = "on another disk";
    if (!wrong && (offset > stop || stop - offset < LOCAL_SIZE + name_size ||
                      stop - offset - LOCAL_SIZE - name_size < found.size))
        wrong = "past the end of the members";
    return wrong ? archive_fail_member(
                       a, BAGS_ERROR_CORRUPT, found.name, name_size, wrong, err)
                 : archive_add(a, &found, err);
}

/* Check a member's local header against the directory, and find its bytes. */
static bags_code zip_locate(const bags_archive *a, archive_window *w,
    archive_member *m, bags_error *err) {
    const char *why = NULL;
    const unsigned char *p;
    bags_code code = archive_bytes(a, w, m->offset, LOCAL_SIZE, &p, err);
    if (code)
        return code;
    size_t name_size = load16(p + 26), extra = load16(p + 28);
    size_t all = LOCAL_SIZE + name_size + extra;
    bool later = load16(p + 6) & 8; /* the sizes follow the bytes */
    if (!is_marked(p, 3, 4))
        why = "no local header";
    else if (all > m->stop - m->offset || m->size > m->stop - m->offset - all)
        why = "overlaps the next one";
    else if ((code = archive_bytes(a, w, m->offset, all, &p, err)) != BAGS_OK)
        return code;
    if (!why && m->error != EISDIR) {
        uint64_t packed = load32(p + 18), size = load32(p + 22);
        uint64_t *wide[2] = {&size, &packed};
        bags_buffer memory = archive_buffer(a);
        if (bags_buffer_reserve(&memory, name_size + 1, err))
            return BAGS_ERROR_MEMORY;
        char *name = (char *)memory.data;
        if (name_clean(
                name, &name_size, (const char *)p + LOCAL_SIZE, name_size) ||
            name_order(m, name, name_size, 0))
            why = "another name in its local header";
        else if (!m->error &&
                 ((load16(p + 6) & 1) || load16(p + 8) != 0 ||
                     !zip_widen(p + all - extra, extra, wide, 2) ||
                     (size != m->size && !(later && size == 0)) ||
                     (packed != m->size && !(later && packed == 0))))
            why = "its local header contradicts the directory";
        bags_buffer_free(&memory);
    }
    if (why)
        return archive_fail_corrupt(a, m, why, err);
    m->offset += all;
    m->located = true;
    return BAGS_OK;
}

/* The names of a zip file's members are known, and that they end at `stop`: find out
 * where each one ends, and read their headers if that is cheap. */
static bags_code zip_check(
    bags_archive *a, archive_window *w, uint64_t stop, bags_error *err) {
    bags_code code = BAGS_OK;
    if (a->length > 0)
        qsort(a->members, (size_t)a->length, sizeof *a->members,
            member_offset_order);
    for (size_t i = (size_t)a->length; i-- > 0; stop = a->members[i].offset) {
        archive_member *m = &a->members[i];
        m->stop = stop;
        if (stop - m->offset < LOCAL_SIZE ||
            stop - m->offset - LOCAL_SIZE < m->size)
            return archive_fail_corrupt(a, m, "overlaps the next one", err);
    }
    w->step = 4096;
    for (size_t i = 0; i < a->length && !code && a->base.map; i++)
        code = zip_locate(a, w, &a->members[i], err);
    return code;
}

static bags_code zip_read_directory(bags_archive *a, archive_window *w,
    uint64_t end, uint64_t *start, bags_error *err) {
    zip_directory directory;
    memset(&directory, 0, sizeof directory);
    bags_code code = zip_find_directory(a, w, end, &directory, err);
    uint64_t at = directory.start;
    *start = at;
    for (uint64_t i = 0; i < directory.length && !code; i++) {
        const unsigned char *p;
        uint64_t left = directory.stop - at;
        size_t size = ENTRY_SIZE;
        if (left < size)
            return zip_fail(a, "the directory is truncated", err);
        code = archive_bytes(a, w, at, size, &p, err);
        if (code)
            return code;
        if (!is_marked(p, 1, 2))
            return zip_fail(a, "an invalid entry in the directory", err);
        size += load16(p + 28) + load16(p + 30) + load16(p + 32);
        if (left < size)
            return zip_fail(a, "the directory is truncated", err);
        code = archive_bytes(a, w, at, size, &p, err);
        if (!code)
            code = zip_add(a, p, &directory, err);
        at += size;
    }
    if (!code && at != directory.stop)
        return zip_fail(a, "bytes after the last entry of the directory", err);
    return code;
}

/* ---- tar ---- */

/* What headers before a member state about it. */
typedef struct tar_next {
    bags_buffer name;
    size_t name_size; /* 0: none */
    uint64_t size;
    bool has_size, any;
} tar_next;

static bags_code tar_fail(
    const bags_archive *a, uint64_t offset, const char *why, bags_error *err) {
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: invalid tar file: %s (at byte %" PRIu64 ")", a->path, why, offset);
}

/* A number of a header: octal digits, or base 256 if the first bit is set. */
static bool tar_number(const unsigned char *p, size_t size, uint64_t *out) {
    uint64_t number = 0;
    size_t i = 0;
    if (p[0] == 0x80) {
        for (i = 1; i < size; i++) {
            if (number >> 55)
                return false;
            number = number << 8 | p[i];
        }
        *out = number;
        return true;
    }
    while (i < size && p[i] == ' ')
        i++;
    for (; i < size && p[i] >= '0' && p[i] <= '7'; i++)
        number = number << 3 | (uint64_t)(p[i] - '0');
    for (; i < size; i++)
        if (p[i] != ' ' && p[i] != 0)
            return false;
    *out = number;
    return true;
}

static bool tar_is_header(const unsigned char *p) {
    uint64_t sum = 0, stored;
    for (size_t i = 0; i < BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : p[i];
    return tar_number(p + 148, 8, &stored) && stored == sum;
}

static bool is_zero(const unsigned char *p, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (p[i])
            return false;
    return true;
}

static size_t text_size(const unsigned char *p, size_t most) {
    const void *end = memchr(p, 0, most);
    return end ? (size_t)((const unsigned char *)end - p) : most;
}

static bags_code tar_keep_name(
    tar_next *next, const void *name, size_t size, bags_error *err) {
    bags_code code = bags_buffer_reserve(&next->name, size + 1, err);
    if (code)
        return code;
    memcpy(next->name.data, name, size);
    next->name_size = size;
    return BAGS_OK;
}

/* A decimal number, at most 10^18. Returns what follows it, or NULL. */
static const unsigned char *parse_decimal(
    const unsigned char *p, const unsigned char *end, uint64_t *out) {
    const unsigned char *start = p;
    for (*out = 0; p < end && *p >= '0' && *p <= '9'; p++)
        *out = 10 * *out + (uint64_t)(*p - '0');
    return p > start && p - start <= 18 ? p : NULL;
}

static bool is_text(
    const unsigned char *p, const unsigned char *end, const char *text) {
    return (size_t)(end - p) == strlen(text) && !memcmp(p, text, strlen(text));
}

/* Apply the records of a pax header: "SIZE KEY=VALUE\n". */
static bags_code tar_pax(const bags_archive *a, uint64_t offset,
    const unsigned char *p, size_t size, bool global, tar_next *next,
    bags_error *err) {
    const unsigned char *end = p + size, *stop;
    for (; p < end; p = stop) {
        uint64_t record = 0;
        const unsigned char *key = parse_decimal(p, end, &record);
        const unsigned char *value = NULL;
        if (key && record > (uint64_t)(key - p) &&
            record <= (uint64_t)(end - p))
            value = (const unsigned char *)memchr(
                key, '=', (size_t)record - (size_t)(key - p));
        stop = value ? p + record : end;
        if (!value || *key++ != ' ' || value < key || stop[-1] != '\n')
            return tar_fail(a, offset, "an invalid pax header", err);
        bool is_path = is_text(key, value, "path");
        bool is_size = is_text(key, value, "size");
        if (value - key > 10 && is_text(key, key + 10, "GNU.sparse"))
            return bags_fail(err, BAGS_ERROR_VALUE,
                "%s: a sparse member (at byte %" PRIu64
                "); write the archive without --sparse",
                a->path, offset);
        if ((is_path || is_size) && global)
            return tar_fail(a, offset, "a global name or size", err);
        value++;
        if (is_path &&
            tar_keep_name(next, value, (size_t)(stop - 1 - value), err))
            return BAGS_ERROR_MEMORY;
        if (is_size && parse_decimal(value, stop, &next->size) != stop - 1)
            return tar_fail(a, offset, "an invalid pax header", err);
        next->has_size = next->has_size || is_size;
    }
    return BAGS_OK;
}

/* Add the member of a header. */
static bags_code tar_add(bags_archive *a, const unsigned char *p,
    uint64_t offset, uint64_t size, tar_next *next, bags_error *err) {
    char joined[155 + 1 + 100];
    archive_found found;
    memset(&found, 0, sizeof found);
    char type = (char)p[156];
    found.located = true;
    found.offset = offset;
    found.size = size;
    found.name = (const char *)next->name.data;
    found.name_size = next->name_size;
    if (found.name_size == 0) {
        /* Only POSIX has a prefix; GNU has other things there. */
        size_t prefix =
            memcmp(p + 257, "ustar", 6) ? 0 : text_size(p + 345, 155);
        size_t name = text_size(p, 100), at = prefix ? prefix + 1 : 0;
        memcpy(joined, p + 345, prefix);
        joined[prefix] = '/';
        memcpy(joined + at, p, name);
        found.name = joined;
        found.name_size = at + name;
    }
    found.directory =
        type == '5' || ((type == 0 || type == '0') && found.name_size > 0 &&
                           found.name[found.name_size - 1] == '/');
    if (type >= '1' && type <= '6' && type != '5') {
        found.error = ENXIO;
        found.why = type <= '2' ? "a link; store the file itself (tar -h)"
                                : "not a regular file";
    }
    if (type == 'S')
        return archive_fail_member(a, BAGS_ERROR_VALUE, found.name,
            found.name_size, "sparse; write the archive without --sparse", err);
    if (!(type == 0 || (type >= '0' && type <= '7')))
        return archive_fail_member(a, BAGS_ERROR_VALUE, found.name,
            found.name_size, "of an unknown type", err);
    if (found.error && size > 0)
        return archive_fail_member(a, BAGS_ERROR_CORRUPT, found.name,
            found.name_size, "a link or device with bytes", err);
    return archive_add(a, &found, err);
}

/* What the first bytes of a file are, if it is compressed as a unit; or NULL. */
static const char *compressed_by(const unsigned char *p) {
    static const struct {
        const char *bytes, *tool;
    } known[] = {{"\x1f\x8b", "gzip -d"}, {"BZh", "bzip2 -d"},
        {"\xfd"
         "7zXZ",
            "xz -d"},
        {"\x28\xb5\x2f\xfd", "zstd -d"}, {"7z\xbc\xaf", "7z x"},
        {"\x04\x22\x4d\x18", "lz4 -d"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!memcmp(p, known[i].bytes, strlen(known[i].bytes)))
            return known[i].tool;
    return NULL;
}

/* A file that begins with no header of a tar. */
static bags_code archive_fail_unknown(
    const bags_archive *a, archive_window *w, bags_error *err) {
    const unsigned char *p;
    bags_code code = archive_bytes(a, w, 0, a->size < 8 ? 0 : 8, &p, err);
    if (code)
        return code;
    const char *tool = a->size < 8 ? NULL : compressed_by(p);
    if (tool)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: compressed as a unit; it can be read in place once it is "
            "decompressed (%s)",
            a->path, tool);
    return bags_fail(err, BAGS_ERROR_CORRUPT,
        "%s: neither a zip file (or it is truncated) nor a tar file", a->path);
}

/* Only zeros may follow the end: what a writer appended after it would be lost
 * silently. */
static bags_code tar_check_end(
    const bags_archive *a, archive_window *w, uint64_t at, bags_error *err) {
    uint64_t rest = a->size - at;
    const unsigned char *p;
    if (rest > FILLING_MOST)
        return tar_fail(a, at, "too many bytes after its end", err);
    bags_code code = archive_bytes(a, w, at, (size_t)rest, &p, err);
    if (!code && !is_zero(p, (size_t)rest))
        code = tar_fail(a, at, "bytes after its end", err);
    return code;
}

static bags_code tar_read_headers(
    bags_archive *a, archive_window *w, tar_next *next, bags_error *err) {
    uint64_t at = 0, size, rest;
    for (;; at += (size + BLOCK - 1) / BLOCK * BLOCK) {
        const unsigned char *p = NULL;
        if (at > a->size || a->size - at < BLOCK)
            return at ? tar_fail(a, at, "truncated: no end", err)
                      : archive_fail_unknown(a, w, err);
        bags_code code = archive_bytes(a, w, at, BLOCK, &p, err);
        if (code)
            return code;
        if (is_zero(p, BLOCK))
            break;
        if (!tar_is_header(p))
            return at ? tar_fail(a, at, "a damaged header", err)
                      : archive_fail_unknown(a, w, err);
        char type = (char)p[156];
        bool about_next = type == 'L' || type == 'K' || type == 'x' ||
                          type == 'g' || type == 'V';
        if (!tar_number(p + 124, 12, &size))
            return tar_fail(a, at, "an invalid size", err);
        if (next->has_size && !about_next)
            size = next->size;
        at += BLOCK;
        rest = a->size - at;
        if (size > rest && !about_next)
            return archive_fail_member(a, BAGS_ERROR_CORRUPT,
                next->name_size ? next->name.data : p,
                next->name_size ? next->name_size : text_size(p, 100),
                "past the end of the archive", err);
        if (about_next && (size > rest || size > PAX_MOST))
            return tar_fail(a, at, "a header that is too large", err);
        if (!about_next)
            code = tar_add(a, p, at, size, next, err);
        else
            code = archive_bytes(a, w, at, (size_t)size, &p, err);
        if (!code && type == 'L')
            code = tar_keep_name(next, p, text_size(p, (size_t)size), err);
        if (!code && (type == 'x' || type == 'g'))
            code = tar_pax(a, at, p, (size_t)size, type == 'g', next, err);
        if (code)
            return code;
        if (!about_next) {
            next->name_size = 0;
            next->has_size = false;
        }
        next->any = about_next && type != 'g' && type != 'V';
    }
    if (next->any)
        return tar_fail(a, at, "a header without its member", err);
    return tar_check_end(a, w, at, err);
}

static bags_code tar_read(bags_archive *a, archive_window *w, bags_error *err) {
    tar_next next;
    memset(&next, 0, sizeof next);
    next.name = archive_buffer(a);
    bags_code code = tar_read_headers(a, w, &next, err);
    bags_buffer_free(&next.name);
    return code;
}

/* ---- hooks ---- */

/* What a path names. Free the memory with bags_buffer_free. */
typedef struct archive_path {
    bags_buffer memory;
    const char *name; /* what follows the archive in the path */
    size_t size;
    bags_path_kind kind;
    size_t first; /* of a directory: its first member */
    const archive_member *member;
} archive_path;

/* Find a path. Returns 0, or an errno value. */
static int archive_look_up(
    const bags_archive *a, const char *path, archive_path *out) {
    size_t length = strlen(path), size = a->path_size;
    memset(out, 0, sizeof *out);
    out->memory = archive_buffer(a);
    if (length < size || memcmp(path, a->path, size) != 0 ||
        (length > size && !IS_SLASH(path[size])))
        return 0;
    while (IS_SLASH(path[size]))
        size++;
    if (bags_buffer_reserve(&out->memory, length - size + 1, NULL))
        return ENOMEM;
    char *name = (char *)out->memory.data;
    for (size_t i = size; i <= length; i++)
        name[i - size] = IS_SLASH(path[i]) ? '/' : path[i];
    if (name_clean(name, &out->size, name, length - size))
        return 0;
    out->name = name;
    out->first = out->size ? archive_search(a, name, out->size, '/') : 0;
    out->member = archive_find(a, name, out->size);
    out->kind = out->size == 0 || is_below(a, out->first, name, out->size)
                    ? BAGS_PATH_DIRECTORY
                : out->member ? BAGS_PATH_FILE
                              : BAGS_PATH_NONE;
    return 0;
}

static int hook_kind(void *user, const char *path, bags_path_kind *kind) {
    archive_path at;
    int error = archive_look_up((const bags_archive *)user, path, &at);
    bags_buffer_free(&at.memory);
    if (!error)
        *kind = at.kind;
    return error;
}

static int hook_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    const bags_archive *a = (const bags_archive *)user;
    bags_buffer child = archive_buffer(a);
    archive_path at;
    int error = archive_look_up(a, path, &at);
    size_t i = at.first, start = at.size ? at.size + 1 : 0;
    if (!error && at.kind != BAGS_PATH_DIRECTORY)
        error = at.kind == BAGS_PATH_FILE ? ENOTDIR : ENOENT;
    while (!error && is_below(a, i, at.name, at.size)) {
        const archive_member *m = &a->members[i];
        const char *name = m->name.text + start;
        size_t size = m->name_size - start;
        const char *slash = (const char *)memchr(name, '/', size);
        size = slash ? (size_t)(slash - name) : size;
        /* '0' follows '/': the first name that is not below the child. */
        i = slash && size > 0
                ? archive_search(a, m->name.text, start + size, '/' + 1)
                : i + 1;
        if (size == 0) /* the directory's own entry */
            continue;
        if (bags_buffer_reserve(&child, size + 1, NULL)) {
            error = ENOMEM;
            break;
        }
        memcpy(child.data, name, size);
        child.data[size] = 0;
        error = each(each_user, (const char *)child.data);
    }
    bags_buffer_free(&child);
    bags_buffer_free(&at.memory);
    return error;
}

static int hook_close(void *user, void *file) {
    archive_file *f = (archive_file *)file;
    bags_buffer memory = f->memory;
    (void)user;
    bags_buffer_free(&f->head.buffer);
    bags_buffer_free(&f->tail.buffer);
    bags_buffer_free(&memory);
    return 0;
}

/* A window that reads nothing yet. */
static void window_start(
    const bags_archive *a, archive_window *w, size_t step) {
    memset(w, 0, sizeof *w);
    w->buffer = archive_buffer(a);
    w->step = step;
}

/* Read what a reader of a Bag needs first: the header and the first bytes with one
 * request, the last ones with another. */
static int file_prepare(archive_file *f) {
    const bags_archive *a = f->archive;
    archive_member *m = &f->member;
    const unsigned char *p;
    bags_error err;
    err.system = 0;
    bags_code code = m->located ? BAGS_OK : zip_locate(a, &f->head, m, &err);
    uint64_t near = m->size < LAST ? m->size : LAST;
    uint64_t last = m->offset + m->size - near;
    if (!code && !window_has(&f->head, last, (size_t)near))
        code = archive_bytes(a, &f->tail, last, (size_t)near, &p, &err);
    return !code                       ? 0
           : err.system                ? err.system
           : code == BAGS_ERROR_MEMORY ? ENOMEM
                                       : EBADMSG;
}

static int hook_open(void *user, const char *path, int mode, void **file) {
    bags_archive *a = (bags_archive *)user;
    bags_buffer memory = archive_buffer(a);
    archive_path at;
    if (mode != BAGS_IO_READ)
        return EROFS;
    int error = archive_look_up(a, path, &at);
    bags_buffer_free(&at.memory);
    if (!error && at.kind != BAGS_PATH_FILE)
        error = at.kind == BAGS_PATH_NONE ? ENOENT : EISDIR;
    if (!error)
        error = at.member->error;
    if (!error && bags_buffer_reserve(&memory, sizeof(archive_file), NULL))
        error = ENOMEM;
    if (error)
        return error;
    archive_file *f = (archive_file *)(void *)memory.data;
    f->memory = memory;
    f->archive = a;
    f->member = *at.member;
    uint64_t size = f->member.size; /* a small one is read at once */
    window_start(a, &f->head, HEAD + (size <= LAST ? (size_t)size : 0));
    window_start(a, &f->tail, LAST);
    error = a->base.map ? 0 : file_prepare(f);
    if (error)
        hook_close(user, f);
    else
        *file = f;
    return error;
}

static int hook_size(void *user, void *file, uint64_t *size) {
    (void)user;
    *size = ((const archive_file *)file)->member.size;
    return 0;
}

/* Copy bytes at an offset in the archive, if they are in memory. */
static bool file_has(
    const archive_file *f, uint64_t offset, void *data, size_t size) {
    const archive_window *near[3] = {&f->archive->tail, &f->head, &f->tail};
    for (size_t i = 0; i < 3 && size > 0; i++)
        if (window_has(near[i], offset, size)) {
            if (data)
                memcpy(data, near[i]->buffer.data + (offset - near[i]->start),
                    size);
            return true;
        }
    return false;
}

static int hook_read_at(void *user, void *file, uint64_t offset, void *data,
    size_t size, size_t *done) {
    const bags_archive *a = (const bags_archive *)user;
    const archive_file *f = (const archive_file *)file;
    uint64_t rest = offset < f->member.size ? f->member.size - offset : 0;
    size = size < rest ? size : (size_t)rest;
    offset += f->member.offset;
    *done = size;
    if (size == 0 || file_has(f, offset, data, size))
        return 0;
    return a->base.read_at(a->base.user, a->file, offset, data, size, done);
}

static void hook_read_many(void *user, bags_io_read *reads, size_t count) {
    const bags_archive *a = (const bags_archive *)user;
    bags_buffer memory = archive_buffer(a);
    size_t missing = 0;
    if (bags_buffer_reserve(&memory, count * sizeof *reads, NULL))
        return; /* they are read one by one */
    bags_io_read *moved = (bags_io_read *)(void *)memory.data;
    for (size_t i = 0; i < count; i++) {
        const archive_file *f = (const archive_file *)reads[i].file;
        bags_io_read *to = &moved[missing];
        uint64_t size = f->member.size;
        uint64_t rest = reads[i].offset < size ? size - reads[i].offset : 0;
        *to = reads[i];
        to->file = a->file;
        to->offset += f->member.offset;
        to->size = to->size < rest ? to->size : (size_t)rest;
        if (file_has(f, to->offset, to->data, to->size))
            reads[i].done = to->size;
        else
            missing++;
    }
    if (missing > 0)
        a->base.read_many(a->base.user, moved, missing);
    for (size_t i = count; i-- > 0;)
        if (reads[i].done == 0)
            reads[i].done = moved[--missing].done;
    bags_buffer_free(&memory);
}

/* The messages of what was found when a member was opened, and those of the hooks
 * below. */
static void hook_explain(
    void *user, const char *path, int error, char *text, size_t size) {
    const bags_archive *a = (const bags_archive *)user;
    archive_window window;
    archive_path at;
    bags_error err;
    *text = 0;
    int failed = archive_look_up(a, path, &at);
    bags_buffer_free(&at.memory);
    window_start(a, &window, HEAD);
    if (!failed && at.member && !at.member->located && error == EBADMSG) {
        archive_member member = *at.member;
        if (zip_locate(a, &window, &member, &err))
            (void)snprintf(text, size, "%s", err.message);
    } else if (!failed && at.member && error == ENOTSUP) {
        (void)snprintf(text, size, "compressed or encrypted in the archive");
    } else if (a->base.explain) {
        a->base.explain(a->base.user, a->path, error, text, size);
    }
    bags_buffer_free(&window.buffer);
}

static int hook_map(void *user, void *file, size_t size, const void **data) {
    const bags_archive *a = (const bags_archive *)user;
    const archive_member *m = &((const archive_file *)file)->member;
    if (!a->map || size > m->size)
        return EINVAL;
    *data = a->map + m->offset;
    return 0;
}

/* The map is the archive's. */
static int hook_unmap(void *user, const void *data, size_t size) {
    (void)user;
    (void)data;
    (void)size;
    return 0;
}

static int hook_advise(void *user, void *file, const void *map, uint64_t offset,
    uint64_t size, bags_advice advice) {
    const bags_archive *a = (const bags_archive *)user;
    if (!map)
        offset += ((const archive_file *)file)->member.offset;
    return a->base.advise(
        a->base.user, map ? NULL : a->file, map, offset, size, advice);
}

static int hook_refuse(void *user, const char *path) {
    (void)user;
    (void)path;
    return EROFS;
}

static int hook_refuse_rename(void *user, const char *from, const char *to) {
    (void)user;
    (void)from;
    (void)to;
    return EROFS;
}

static void archive_set_hooks(bags_archive *a) {
    a->io.user = a;
    a->io.open = hook_open;
    a->io.close = hook_close;
    a->io.size = hook_size;
    a->io.read_at = hook_read_at;
    a->io.map = a->map ? hook_map : NULL;
    a->io.unmap = hook_unmap;
    a->io.kind = hook_kind;
    a->io.list = hook_list;
    a->io.make_dir = hook_refuse;
    a->io.sync_dir = hook_refuse;
    a->io.remove = hook_refuse;
    a->io.remove_dir = hook_refuse;
    a->io.rename = hook_refuse_rename;
    a->io.advise = a->base.advise ? hook_advise : NULL;
    a->io.read_many = a->base.read_many ? hook_read_many : NULL;
    a->io.explain = hook_explain;
}

/* ---- open and close ---- */

/* Read the end of the archive. *end receives the offset of a zip's last record;
 * otherwise it is a tar. */
static bags_code archive_find_end(bags_archive *a, archive_window *w,
    uint64_t *end, bool *is_zip, bags_error *err) {
    size_t most = END_SIZE + COMMENT_MOST + LOCATOR_SIZE + END64_SIZE;
    *is_zip = false;
    most = a->base.map ? most : TAIL;
    most = a->size < most ? (size_t)a->size : most;
    w->step = most;
    const unsigned char *p;
    bags_code code = archive_bytes(a, w, a->size - most, most, &p, err);
    if (code)
        return code;
    for (size_t after = END_SIZE;
         after <= most && after <= END_SIZE + COMMENT_MOST; after++) {
        const unsigned char *record = p + most - after;
        if (!is_marked(record, 5, 6) || load16(record + 20) != after - END_SIZE)
            continue;
        *end = a->size - after;
        *is_zip = true;
        break;
    }
    return BAGS_OK;
}

static bags_code archive_load(
    bags_archive *a, archive_window *w, bags_error *err) {
    uint64_t end = 0, start = 0;
    bool is_zip = false;
    bags_code code = archive_find_end(a, w, &end, &is_zip, err);
    if (!code && !a->base.map) { /* keep it */
        a->tail = *w;
        window_start(a, w, 0);
    }
    w->step = a->base.map && !is_zip ? 4096 : STEP;
    if (!code)
        code = is_zip ? zip_read_directory(a, w, end, &start, err)
                      : tar_read(a, w, err);
    if (code)
        return code;
    a->members = (archive_member *)(void *)a->members_memory.data;
    for (size_t i = 0; i < a->length; i++)
        a->members[i].name.text =
            (const char *)a->names.data + a->members[i].name.at;
    if (is_zip)
        code = zip_check(a, w, start, err);
    return code ? code : archive_sort(a, err);
}

static bags_code archive_open(
    bags_archive *a, const char *path, bags_error *err) {
    const void *map = NULL;
    archive_window window;
    a->path_size = strlen(path);
    bags_code code =
        bags_buffer_reserve(&a->path_memory, a->path_size + 1, err);
    if (code)
        return code;
    memcpy(a->path_memory.data, path, a->path_size + 1);
    a->path = (const char *)a->path_memory.data;
    int error = a->base.open(a->base.user, path, BAGS_IO_READ, &a->file);
    if (error) {
        a->file = NULL;
        return archive_fail_system(a, error, "open", err);
    }
    error = a->base.size(a->base.user, a->file, &a->size);
    if (error)
        return archive_fail_system(a, error, "get the size of", err);
    window_start(a, &window, 0);
    code = archive_load(a, &window, err);
    bags_buffer_free(&window.buffer);
    if (!code && a->base.map && a->size > 0 && a->size <= SIZE_MAX &&
        !a->base.map(a->base.user, a->file, (size_t)a->size, &map))
        a->map = (const unsigned char *)map;
    return code;
}

bags_archive *bags_archive_open(
    const char *path, const bags_archive_options *options, bags_error *err) {
    bags_error ignored = {BAGS_OK, 0, ""};
    bags_buffer memory;
    const bags_allocator *allocator = options ? options->env.allocator : NULL;
    err = err ? err : &ignored;
    if (!path || !*path) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "the path is empty");
        return NULL;
    }
    memset(&memory, 0, sizeof memory);
    memory.resize = allocator ? allocator->resize : NULL;
    memory.user = allocator ? allocator->user : NULL;
    if (bags_buffer_reserve(&memory, sizeof(bags_archive), err))
        return NULL;
    bags_archive *a = (bags_archive *)(void *)memory.data;
    memset(a, 0, sizeof *a);
    a->memory = memory;
    a->path_memory = a->names = a->members_memory = archive_buffer(a);
    a->base = options && options->env.io ? *options->env.io : *bags_io_local();
    a->max_members = options && options->max_members ? options->max_members
                                                     : BAGS_ARCHIVE_MAX_MEMBERS;
    if (a->max_members > SIZE_MAX / sizeof(archive_member) - 1)
        a->max_members = SIZE_MAX / sizeof(archive_member) - 1;
    if (archive_open(a, path, err)) {
        bags_archive_close(a);
        return NULL;
    }
    archive_set_hooks(a);
    return a;
}

const bags_io *bags_archive_io(const bags_archive *archive) {
    return &archive->io;
}

void bags_archive_close(bags_archive *archive) {
    if (!archive)
        return;
    bags_archive *a = archive;
    bags_buffer memory = a->memory;
    if (a->map)
        a->base.unmap(a->base.user, a->map, (size_t)a->size);
    if (a->file)
        a->base.close(a->base.user, a->file);
    bags_buffer_free(&a->tail.buffer);
    bags_buffer_free(&a->names);
    bags_buffer_free(&a->members_memory);
    bags_buffer_free(&a->path_memory);
    bags_buffer_free(&memory);
}
