/*
 * archive.c - datasets inside zip and tar files, read in place. No library.
 *
 * The hooks of bags.h present the members as a read-only tree of files:
 *
 *     zip   the directory at the end states name, size and the offset of a local
 *           header, after which the stored bytes are:
 *             header | bytes | header | bytes | ... | directory | end
 *     tar   header | bytes | header | bytes | ... | zeros
 *           The headers are read once, when the archive is opened.
 *
 * Either format becomes one array of members, sorted by name; archive_search searches
 * it. Every name prefix that ends at a slash is a directory, even if the archive has no
 * entry for it. A zip member's local header is checked when the member is opened. An
 * open archive is immutable, so threads need no locks.
 *
 * If the underlying hooks can map files, a mapped member is just an offset into the
 * archive's map. Remote hooks are told which bytes will be read soon (read_many without
 * a buffer), and keep them.
 */
#include "blocks.h"
#include "files.h"
#include "storage.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARCHIVE_BLOCK 512           /* block size of tar */
#define ARCHIVE_LOCAL_SIZE 30       /* zip: a local header's fixed part */
#define ARCHIVE_ENTRY_SIZE 46       /* zip: a directory entry */
#define ARCHIVE_END_SIZE 22         /* zip: the end record */
#define ARCHIVE_END64_SIZE 56       /* zip64: its end record */
#define ARCHIVE_LOCATOR_SIZE 20     /* zip64: sits between END64 and END */
#define ARCHIVE_COMMENT_MOST 0xFFFF /* most bytes of comment after END */
#define ARCHIVE_NAME_MOST 0xFFFF
#define ARCHIVE_PAX_MOST ((uint64_t)1 << 20)     /* most bytes in one pax header */
#define ARCHIVE_FILLING_MOST ((uint64_t)1 << 20) /* most zeros after the end of a tar */
/* How much of a member to announce: at the start, because bags_zip pads the header to a
 * page; at the end, because a Bag's table is there. */
#define ARCHIVE_SOON_START ((size_t)4096 + ARCHIVE_BLOCK)
#define ARCHIVE_SOON_TABLE ((uint64_t)4 << 10)

/* Windows accepts slashes and backslashes. */
#ifdef _WIN32
#define ARCHIVE_IS_SLASH(c) ((c) == '/' || (c) == '\\')
#else
#define ARCHIVE_IS_SLASH(c) ((c) == '/')
#endif

typedef struct archive_member {
    union {
        size_t at;        /* offset in bags_archive.names while that buffer grows, */
        const char *text; /* then the pointer. A directory's name ends in a slash */
    } name;
    uint32_t name_size;
    uint16_t error;  /* errno if the member cannot be opened; 0 if it can */
    bool located;    /* `offset` points at the bytes, not at the local header */
    uint64_t offset; /* in the archive */
    uint64_t size;
    uint64_t stop; /* the entire member lies below this offset */
} archive_member;

struct bags_archive {
    bags_buffer memory; /* the allocation that holds this struct */
    bags_allocator allocator;
    bags_buffer names, members_memory;
    const char *path; /* stored right after this struct */
    size_t path_size;
    size_t names_size;
    archive_member *members;
    uint64_t length, max_members;
    bags_io base, io;
    void *file;
    uint64_t size;
    const unsigned char *map; /* or NULL */
};

/* An open member. */
typedef struct archive_file {
    bags_buffer memory; /* the allocation that holds this struct */
    archive_member member;
} archive_file;

/* ---- errors ---- */

/* Report damage to the archive itself, at an offset. */
static bags_code archive_fail(
    const bags_archive *a, const char *why, uint64_t offset, bags_error *err) {
    return bags_fail(
        err, BAGS_ERROR_CORRUPT, "%s: %s (at byte %" PRIu64 ")", a->path, why, offset);
}

static bags_code archive_fail_member(const bags_archive *a, bags_code code,
    const void *name, size_t size, const char *why, bags_error *err) {
    return bags_fail(err, code, "%s: member \"%.*s\": %s", a->path,
        size > 300 ? 300 : (int)size, (const char *)name, why);
}

static bags_code archive_fail_corrupt(
    const bags_archive *a, const archive_member *m, const char *why, bags_error *err) {
    return archive_fail_member(
        a, BAGS_ERROR_CORRUPT, m->name.text, m->name_size, why, err);
}

/* ---- bytes ---- */

/* Every record of a zip begins with "PK" and two more bytes. */
static bool archive_is_marked(const unsigned char *p, unsigned a, unsigned b) {
    return p[0] == 'P' && p[1] == 'K' && p[2] == a && p[3] == b;
}

/* A window of the archive's bytes in memory. */
typedef struct archive_window {
    bags_buffer buffer;
    uint64_t start;
    size_t size;
    size_t step; /* bytes per read */
} archive_window;

/* Map part of the archive; the view stays valid until the next call with this window.
 * The caller has checked that the range lies within the archive. */
static bags_code archive_bytes(const bags_archive *a, archive_window *w,
    uint64_t offset, size_t size, const unsigned char **out, bags_error *err) {
    uint64_t rest = a->size - offset;
    if (offset < w->start || offset - w->start > w->size ||
        w->size - (size_t)(offset - w->start) < size || !w->buffer.data) {
        size_t part = size > w->step ? size : w->step;
        part = part > rest ? (size_t)rest : part;
        w->size = 0;
        w->start = offset;
        if (bags_buffer_reserve(&w->buffer, part + 1, err))
            return BAGS_ERROR_MEMORY;
        FORMAT_TRY(
            bags_read(&a->base, a->file, a->path, offset, w->buffer.data, part, err));
        w->size = part;
    }
    *out = w->buffer.data + (offset - w->start);
    return BAGS_OK;
}

/* Start reading bytes that will be needed soon, if the hooks can do so. */
static void archive_expect(const bags_archive *a, uint64_t offset, uint64_t size) {
    bags_io_read read = {NULL, offset, NULL, (size_t)size, 0};
    read.file = a->file;
    if (a->base.read_many && !a->base.map && size <= SIZE_MAX)
        a->base.read_many(a->base.user, &read, 1);
}

/* ---- members ---- */

/* True for a file that dataset readers open. */
static bool archive_is_of_dataset(const char *name, size_t size) {
    return format_is_of_bag(name, size) || format_ends(name, size, "spec.json");
}

/* Copy a name, dropping empty and "." parts and any trailing slash. Returns NULL on
 * success, otherwise why the name is invalid. `to` may be `name`. */
static const char *archive_clean_name(
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

/* A member as described by its archive format. */
typedef struct archive_found {
    const char *name;
    size_t name_size;
    uint64_t offset, size;
    bool directory, located;
    int error;       /* see archive_member */
    const char *why; /* `error` in words */
} archive_found;

/* Add a member. An unreadable member is an error if dataset readers would open it. */
static bags_code archive_add(
    bags_archive *a, const archive_found *found, bags_error *err) {
    size_t size = found->name_size;
    const size_t one = sizeof(archive_member);
    bags_code code = BAGS_ERROR_CORRUPT;
    if (a->length >= a->max_members)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: too many members (more than %" PRIu64 ")", a->path, a->max_members);
    if (bags_buffer_reserve(&a->names, a->names_size + size + 1, err) ||
        bags_buffer_reserve(&a->members_memory, (size_t)(a->length + 1) * one, err))
        return BAGS_ERROR_MEMORY;
    char *name = (char *)a->names.data + a->names_size;
    const char *why = archive_clean_name(name, &size, found->name, size);
    if (!why && size > ARCHIVE_NAME_MOST)
        why = "the name is too long";
    else if (!why && size == 0 && !found->directory)
        why = "an empty name";
    else if (!why && found->directory && found->size > 0)
        why = "a directory with bytes";
    else if (!why && found->error && archive_is_of_dataset(name, size)) {
        why = found->why;
        code = BAGS_ERROR_VALUE;
    }
    if (why)
        return archive_fail_member(a, code, found->name, found->name_size, why, err);
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
    member.stop = found->offset + found->size;
    memcpy(a->members_memory.data + (size_t)a->length++ * one, &member, one);
    a->names_size += size;
    return BAGS_OK;
}

/* Compare a member's name with `name` plus the character `last` (unless `last` is
 * 0). */
static int archive_order_name(
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

/* For qsort. A directory, whose name ends in a slash, sorts after a file with the same
 * name. */
static int archive_compare_names(const void *x, const void *y) {
    const archive_member *b = (const archive_member *)y;
    return archive_order_name((const archive_member *)x, b->name.text, b->name_size, 0);
}

static int archive_compare_offsets(const void *x, const void *y) {
    const archive_member *a = (const archive_member *)x;
    const archive_member *b = (const archive_member *)y;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* Find the first member whose name does not sort before `name`. */
static size_t archive_search(
    const bags_archive *a, const char *name, size_t size, int last) {
    size_t start = 0, stop = (size_t)a->length;
    while (start < stop) {
        size_t middle = start + (stop - start) / 2;
        if (archive_order_name(&a->members[middle], name, size, last) < 0)
            start = middle + 1;
        else
            stop = middle;
    }
    return start;
}

/* True if member i is inside the directory, or is the directory's own entry. An empty
 * name means the archive itself. */
static bool archive_is_below(
    const bags_archive *a, size_t i, const char *name, size_t size) {
    if (i >= a->length || size == 0)
        return i < a->length;
    const archive_member *m = &a->members[i];
    return m->name_size > size && m->name.text[size] == '/' &&
           !memcmp(m->name.text, name, size);
}

/* Sort the members once all are added, and reject duplicate names. */
static bags_code archive_sort(bags_archive *a, bags_error *err) {
    size_t length = (size_t)a->length;
    if (length > 0)
        qsort(a->members, length, sizeof *a->members, archive_compare_names);
    for (size_t i = 0; i < length; i++) {
        const archive_member *m = &a->members[i];
        if (m->error == EISDIR)
            continue;
        if (i > 0 && !archive_compare_names(m - 1, m))
            return archive_fail_corrupt(a, m, "duplicate", err);
        if (archive_is_below(a, archive_search(a, m->name.text, m->name_size, '/'),
                m->name.text, m->name_size))
            return archive_fail_corrupt(a, m, "both a file and a directory", err);
    }
    return BAGS_OK;
}

/* ---- zip ---- */

/* The entries: offsets in the archive. */
typedef struct archive_zip_directory {
    uint64_t start, stop, length;
    uint64_t shift; /* bytes before the writer's idea of the start */
} archive_zip_directory;

/* Locate the directory using the records at the end of the file. */
static bags_code archive_zip_find_directory(const bags_archive *a, archive_window *w,
    uint64_t end, archive_zip_directory *out, bags_error *err) {
    const uint64_t more = ARCHIVE_END64_SIZE + ARCHIVE_LOCATOR_SIZE;
    const unsigned char *p, *wide = NULL;
    uint64_t before = end < more ? end : more;
    FORMAT_TRY(
        archive_bytes(a, w, end - before, (size_t)before + ARCHIVE_END_SIZE, &p, err));
    if (before == more && archive_is_marked(p + ARCHIVE_END64_SIZE, 6, 7))
        wide = p;
    p += before;
    uint64_t disks =
        bags_load_bytes(p + 4, 2, false) | bags_load_bytes(p + 6, 2, false);
    uint64_t here = bags_load_bytes(p + 8, 2, false),
             length = bags_load_bytes(p + 10, 2, false);
    uint64_t size = bags_load_bytes(p + 12, 4, false),
             offset = bags_load_bytes(p + 16, 4, false);
    if (wide) {
        end -= more;
        if (!archive_is_marked(wide, 6, 6) ||
            bags_load_bytes(wide + 4, 8, false) != ARCHIVE_END64_SIZE - 12)
            return archive_fail(a, "no zip64 record", end, err);
        if ((length != 0xFFFF && length != bags_load_bytes(wide + 32, 8, false)) ||
            (size != UINT32_MAX && size != bags_load_bytes(wide + 40, 8, false)) ||
            (offset != UINT32_MAX && offset != bags_load_bytes(wide + 48, 8, false)))
            return archive_fail(a, "the two records at the end differ", end, err);
        disks = bags_load_bytes(wide + 16, 4, false) |
                bags_load_bytes(wide + 20, 4, false) |
                bags_load_bytes(wide + ARCHIVE_END64_SIZE + 4, 4, false) |
                (bags_load_bytes(wide + ARCHIVE_END64_SIZE + 16, 4, false) > 1);
        here = bags_load_bytes(wide + 24, 8, false);
        length = bags_load_bytes(wide + 32, 8, false);
        size = bags_load_bytes(wide + 40, 8, false);
        offset = bags_load_bytes(wide + 48, 8, false);
    }
    if (disks != 0 || here != length)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: a part of a zip file on several disks", a->path);
    if (size > end || offset > end - size)
        return archive_fail(a, "the zip file's directory is outside", end, err);
    if (length > size / ARCHIVE_ENTRY_SIZE)
        return archive_fail(a, "more members than fit into the directory", end, err);
    out->start = end - size;
    out->stop = end;
    out->shift = out->start - offset;
    out->length = length;
    return BAGS_OK;
}

/* Replace saturated 32-bit numbers with their values from the zip64 extra field. False
 * if a value is missing. `extra` is already in memory, and the numbers are listed in
 * its order. */
static bool archive_zip_widen(
    const unsigned char *extra, size_t size, uint64_t *numbers[], size_t count) {
    const unsigned char *from = extra;
    size_t left = 0;
    for (size_t at = 0, part; size - at >= 4; at += 4 + part) {
        part = (size_t)bags_load_bytes(extra + at + 2, 2, false);
        if (part > size - at - 4)
            break;
        if (bags_load_bytes(extra + at, 2, false) != 1)
            continue;
        from = extra + at + 4;
        left = part;
        break;
    }
    for (size_t i = 0; i < count; i++) {
        if (*numbers[i] != UINT32_MAX)
            continue;
        if (left < 8)
            return false;
        *numbers[i] = bags_load_bytes(from, 8, false);
        from += 8;
        left -= 8;
    }
    return true;
}

/* Add the member for a directory entry that is in memory. */
static bags_code archive_zip_add(bags_archive *a, const unsigned char *p,
    const archive_zip_directory *directory, bags_error *err) {
    uint64_t flags = bags_load_bytes(p + 8, 2, false),
             method = bags_load_bytes(p + 10, 2, false);
    unsigned host = p[5];
    size_t name_size = (size_t)bags_load_bytes(p + 28, 2, false);
    size_t extra = (size_t)bags_load_bytes(p + 30, 2, false);
    uint64_t packed = bags_load_bytes(p + 20, 4, false),
             size = bags_load_bytes(p + 24, 4, false);
    uint64_t offset = bags_load_bytes(p + 42, 4, false),
             mode = bags_load_bytes(p + 38, 4, false) >> 16;
    uint64_t *wide[3] = {&size, &packed, &offset};
    uint64_t stop = directory->start - directory->shift; /* where the members end */
    const char *wrong = NULL;
    archive_found found;
    memset(&found, 0, sizeof found);
    found.name = (const char *)p + ARCHIVE_ENTRY_SIZE;
    found.name_size = name_size;
    found.directory = name_size > 0 && found.name[name_size - 1] == '/';
    if (!archive_zip_widen(p + ARCHIVE_ENTRY_SIZE + name_size, extra, wide, 3))
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
    uint64_t disk =
        bags_load_bytes(p + 34, 2, false); /* all ones: the number is in the zip64
                                              field, if there is one */
    if (disk != 0 && disk != 0xFFFF && !wrong)
        wrong = "on another disk";
    if (!wrong && (offset > stop || stop - offset < ARCHIVE_LOCAL_SIZE + name_size ||
                      stop - offset - ARCHIVE_LOCAL_SIZE - name_size < found.size))
        wrong = "past the end of the members";
    return wrong ? archive_fail_member(
                       a, BAGS_ERROR_CORRUPT, found.name, name_size, wrong, err)
                 : archive_add(a, &found, err);
}

/* Check a member's local header against the directory, and find its bytes. */
static bags_code archive_zip_locate(
    const bags_archive *a, archive_window *w, archive_member *m, bags_error *err) {
    const char *why = NULL;
    const unsigned char *p;
    FORMAT_TRY(archive_bytes(a, w, m->offset, ARCHIVE_LOCAL_SIZE, &p, err));
    size_t name_size = (size_t)bags_load_bytes(p + 26, 2, false);
    size_t extra = (size_t)bags_load_bytes(p + 28, 2, false);
    size_t all = ARCHIVE_LOCAL_SIZE + name_size + extra;
    bool later = bags_load_bytes(p + 6, 2, false) & 8; /* sizes follow the data */
    if (!archive_is_marked(p, 3, 4))
        return archive_fail_corrupt(a, m, "no local header", err);
    if (all > m->stop - m->offset || m->size > m->stop - m->offset - all)
        return archive_fail_corrupt(a, m, "overlaps the next one", err);
    FORMAT_TRY(archive_bytes(a, w, m->offset, all, &p, err));
    uint64_t packed = bags_load_bytes(p + 18, 4, false),
             size = bags_load_bytes(p + 22, 4, false);
    uint64_t *wide[2] = {&size, &packed};
    /* The window holds a copy, so the bytes may be changed. */
    char *name = (char *)w->buffer.data + (m->offset - w->start) + ARCHIVE_LOCAL_SIZE;
    if (archive_clean_name(name, &name_size, name, name_size) ||
        archive_order_name(m, name, name_size, 0))
        why = "another name in its local header";
    else if ((bags_load_bytes(p + 6, 2, false) & 1) ||
             bags_load_bytes(p + 8, 2, false) != 0 ||
             !archive_zip_widen(p + all - extra, extra, wide, 2) ||
             (size != m->size && !(later && size == 0)) ||
             (packed != m->size && !(later && packed == 0)))
        why = "its local header contradicts the directory";
    if (why)
        return archive_fail_corrupt(a, m, why, err);
    m->offset += all;
    m->located = true;
    return BAGS_OK;
}

/* Given all members of a zip and the end of the last one (`stop`), find where each
 * ends. */
static bags_code archive_zip_check_overlap(
    bags_archive *a, uint64_t stop, bags_error *err) {
    if (a->length > 0)
        qsort(
            a->members, (size_t)a->length, sizeof *a->members, archive_compare_offsets);
    for (size_t i = (size_t)a->length; i-- > 0; stop = a->members[i].offset) {
        archive_member *m = &a->members[i];
        m->stop = stop;
        if (stop - m->offset < ARCHIVE_LOCAL_SIZE ||
            stop - m->offset - ARCHIVE_LOCAL_SIZE < m->size)
            return archive_fail_corrupt(a, m, "overlaps the next one", err);
    }
    return BAGS_OK;
}

/* Read the directory. It is authoritative: unlisted local headers, such as deleted
 * members, are ignored. */
static bags_code archive_zip_read(bags_archive *a, archive_window *w, uint64_t end,
    uint64_t *start, bags_error *err) {
    archive_zip_directory directory;
    memset(&directory, 0, sizeof directory);
    FORMAT_TRY(archive_zip_find_directory(a, w, end, &directory, err));
    uint64_t at = directory.start;
    archive_expect(a, at, directory.stop - at);
    *start = at;
    w->step = (size_t)64 << 10;
    for (uint64_t i = 0; i < directory.length; i++) {
        const unsigned char *p = NULL;
        size_t size = ARCHIVE_ENTRY_SIZE;
        bool fits = directory.stop - at >= size;
        if (fits)
            FORMAT_TRY(archive_bytes(a, w, at, size, &p, err));
        if (fits) {
            if (!archive_is_marked(p, 1, 2))
                return archive_fail(
                    a, "an invalid entry in the zip file's directory", at, err);
            for (int k = 28; k <= 32; k += 2) /* name, extra fields, comment */
                size += (size_t)bags_load_bytes(p + k, 2, false);
            fits = directory.stop - at >= size;
        }
        if (!fits)
            return archive_fail(a, "the zip file's directory is truncated", at, err);
        FORMAT_TRY(archive_bytes(a, w, at, size, &p, err));
        FORMAT_TRY(archive_zip_add(a, p, &directory, err));
        at += size;
    }
    if (at != directory.stop)
        return archive_fail(a, "bytes after the last entry of the directory", at, err);
    return BAGS_OK;
}

/* ---- tar ---- */

/* Facts about a member taken from the headers before it. */
typedef struct archive_tar_next {
    bags_buffer name;
    size_t name_size; /* 0: none */
    uint64_t size;
    bool has_size, any;
} archive_tar_next;

/* Parse a header's number: octal digits, or base 256 if the top bit is set. */
static bool archive_tar_number(const unsigned char *p, size_t size, uint64_t *out) {
    uint64_t number = 0;
    size_t i = 0;
    if (p[0] == 0x80) {
        *out = bags_load_bytes(p + size - 8, 8, true);
        while (++i < size - 8 && !p[i])
            ;
        return i >= size - 8 && !(*out >> 63);
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

/* True if the checksum is right. The checksum's own bytes count as spaces. */
static bool archive_tar_is_header(const unsigned char *p) {
    uint64_t sum = 0, stored;
    for (size_t i = 0; i < ARCHIVE_BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : p[i];
    return archive_tar_number(p + 148, 8, &stored) && stored == sum;
}

static bool archive_is_zero(const unsigned char *p, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (p[i])
            return false;
    return true;
}

static size_t archive_text_size(const unsigned char *p, size_t most) {
    const void *end = memchr(p, 0, most);
    return end ? (size_t)((const unsigned char *)end - p) : most;
}

/* Save a name of any length for the next member, because the window moves before the
 * name is needed. */
static bags_code archive_tar_keep_name(
    archive_tar_next *next, const void *name, size_t size, bags_error *err) {
    FORMAT_TRY(bags_buffer_reserve(&next->name, size + 1, err));
    memcpy(next->name.data, name, size);
    next->name_size = size;
    return BAGS_OK;
}

/* Apply the records of a pax header: "SIZE KEY=VALUE\n". */
static bags_code archive_tar_pax(const bags_archive *a, uint64_t offset,
    const unsigned char *p, size_t size, bool global, archive_tar_next *next,
    bags_error *err) {
    const char *at = (const char *)p, *end = at + size, *stop;
    for (; at < end; at = stop) {
        uint64_t record = 0;
        const char *key = at, *value = NULL;
        if (format_decimal(&key, end, &record) && record > (uint64_t)(key - at) &&
            record <= (uint64_t)(end - at))
            value = (const char *)memchr(key, '=', (size_t)record - (size_t)(key - at));
        stop = value ? at + record : end;
        if (!value || *key++ != ' ' || value < key || stop[-1] != '\n')
            return archive_fail(a, "an invalid pax header", offset, err);
        bags_view name = {(const unsigned char *)key, (size_t)(value - key)};
        bool is_path = bags_view_is(name, "path"), is_size = bags_view_is(name, "size");
        if (name.size > 10 && !memcmp(name.data, "GNU.sparse", 10))
            return bags_fail(err, BAGS_ERROR_VALUE,
                "%s: a sparse member (at byte %" PRIu64
                "); write the archive without --sparse",
                a->path, offset);
        if ((is_path || is_size) && global)
            return archive_fail(a, "a global name or size", offset, err);
        value++;
        if (is_path &&
            archive_tar_keep_name(next, value, (size_t)(stop - 1 - value), err))
            return BAGS_ERROR_MEMORY;
        if (is_size &&
            (!format_decimal(&value, stop, &next->size) || value != stop - 1))
            return archive_fail(a, "an invalid pax header", offset, err);
        next->has_size = next->has_size || is_size;
    }
    return BAGS_OK;
}

/* Add the member described by a header. */
static bags_code archive_tar_add(bags_archive *a, const unsigned char *p,
    uint64_t offset, uint64_t size, archive_tar_next *next, bags_error *err) {
    char joined[155 + 1 + 100], type = (char)p[156];
    archive_found found;
    const char *wrong = NULL;
    bags_code code = BAGS_ERROR_CORRUPT;
    memset(&found, 0, sizeof found);
    found.located = true;
    found.offset = offset;
    found.size = size;
    found.name = (const char *)next->name.data;
    found.name_size = next->name_size;
    if (found.name_size == 0) {
        /* Only POSIX has a prefix; GNU uses these bytes for something else. */
        size_t prefix =
            memcmp(p + 257, "ustar", 6) ? 0 : archive_text_size(p + 345, 155);
        size_t name = archive_text_size(p, 100), at = prefix ? prefix + 1 : 0;
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
        found.why = type == '1'   ? "a hard link; store the file itself (tar "
                                    "--hard-dereference)"
                    : type == '2' ? "a link; store the file itself (tar -h)"
                                  : "not a regular file";
        wrong = size > 0 ? "a link or device with bytes" : NULL;
    } else if (type != 0 && (type < '0' || type > '7')) {
        code = BAGS_ERROR_VALUE;
        wrong = type == 'S' ? "sparse; write the archive without --sparse"
                            : "of an unknown type";
    } else if (offset > a->size || size > a->size - offset) {
        wrong = "past the end of the archive";
    }
    return wrong ? archive_fail_member(a, code, found.name, found.name_size, wrong, err)
                 : archive_add(a, &found, err);
}

/* Check that only zeros follow the end marker. Members appended after it would
 * otherwise be lost silently. */
static bags_code archive_tar_check_end(
    const bags_archive *a, archive_window *w, uint64_t at, bags_error *err) {
    uint64_t rest = a->size - at;
    const unsigned char *p;
    if (rest > ARCHIVE_FILLING_MOST)
        return archive_fail(a, "too many bytes after its end", at, err);
    FORMAT_TRY(archive_bytes(a, w, at, (size_t)rest, &p, err));
    if (!archive_is_zero(p, (size_t)rest))
        FORMAT_TRY(archive_fail(a, "bytes after its end", at, err));
    return BAGS_OK;
}

/*
 * A tar is a list of headers. Some of them describe the next header:
 *     L, K   its name, or its link target (GNU)
 *     x, g   its name, size, ... (x), or defaults for all later members (g) (pax)
 *     V      a label
 *
 *     [L | x | g | V]*  member  [L | x | g | V]*  member ... two blocks of zeros
 */
static bags_code archive_tar_read(
    bags_archive *a, archive_window *w, archive_tar_next *next, bags_error *err) {
    uint64_t at = 0, size = 0;
    w->step = (size_t)16 << 10;
    for (;; at += (size + ARCHIVE_BLOCK - 1) / ARCHIVE_BLOCK * ARCHIVE_BLOCK) {
        const unsigned char *p = NULL;
        bool fits = at <= a->size && a->size - at >= ARCHIVE_BLOCK;
        if (fits && size > w->step) /* also reads the table of the Bag before it */
            archive_expect(a, at - ARCHIVE_BLOCK - ARCHIVE_SOON_TABLE,
                ARCHIVE_BLOCK + ARCHIVE_SOON_TABLE + w->step);
        FORMAT_TRY(fits ? archive_bytes(a, w, at, ARCHIVE_BLOCK, &p, err) : BAGS_OK);
        if (fits && archive_is_zero(p, ARCHIVE_BLOCK))
            break;
        if (!fits || !archive_tar_is_header(p))
            return archive_fail(a,
                at == 0 ? "neither a zip file (or it is truncated) nor a tar file; "
                          "decompress it if it is compressed as a unit (.tar.gz)"
                : fits  ? "a damaged tar header"
                        : "the tar file is truncated: no end",
                at, err);
        char type = (char)p[156];
        bool about_next =
            type == 'L' || type == 'K' || type == 'x' || type == 'g' || type == 'V';
        if (!archive_tar_number(p + 124, 12, &size))
            return archive_fail(a, "an invalid size in a tar header", at, err);
        if (next->has_size && !about_next)
            size = next->size;
        at += ARCHIVE_BLOCK;
        if (!about_next) {
            FORMAT_TRY(archive_tar_add(a, p, at, size, next, err));
            next->name_size = 0;
            next->has_size = false;
        } else if (size > a->size - at || size > ARCHIVE_PAX_MOST) {
            return archive_fail(a, "a tar header that is too large", at, err);
        } else {
            FORMAT_TRY(archive_bytes(a, w, at, (size_t)size, &p, err));
        }
        if (type == 'L')
            FORMAT_TRY(archive_tar_keep_name(
                next, p, archive_text_size(p, (size_t)size), err));
        if (type == 'x' || type == 'g')
            FORMAT_TRY(archive_tar_pax(a, at, p, (size_t)size, type == 'g', next, err));
        next->any = about_next && type != 'g' && type != 'V';
    }
    if (next->any)
        return archive_fail(a, "a tar header without its member", at, err);
    return archive_tar_check_end(a, w, at, err);
}

/* ---- hooks ---- */

/* The target that a path resolves to. */
typedef struct archive_path {
    bags_path_kind kind;
    const archive_member *member; /* for a file */
    size_t first;                 /* for a directory: its first member, */
    const char *name;             /* whose name begins with the directory's name, */
    size_t size;                  /* `size` bytes long; 0: the archive itself */
} archive_path;

/* Resolve a path. Returns 0 or an errno value. */
static int archive_look_up(const bags_archive *a, const char *path, archive_path *out) {
    size_t length = strlen(path), size = a->path_size;
    bags_buffer memory = bags_buffer_of(&a->allocator);
    memset(out, 0, sizeof *out);
    if (length < size || memcmp(path, a->path, size) != 0 ||
        (length > size && !ARCHIVE_IS_SLASH(path[size])))
        return 0;
    while (ARCHIVE_IS_SLASH(path[size]))
        size++;
    if (bags_buffer_reserve(&memory, length - size + 1, NULL))
        return ENOMEM;
    char *name = (char *)memory.data;
    for (size_t i = size; i <= length; i++)
        name[i - size] = ARCHIVE_IS_SLASH(path[i]) ? '/' : path[i];
    if (!archive_clean_name(name, &out->size, name, length - size)) {
        size_t i = archive_search(a, name, out->size, 0);
        out->first = out->size ? archive_search(a, name, out->size, '/') : 0;
        if (out->size == 0 || archive_is_below(a, out->first, name, out->size)) {
            out->kind = BAGS_PATH_DIRECTORY;
            out->name = out->size ? a->members[out->first].name.text : "";
        } else if (i < a->length &&
                   !archive_order_name(&a->members[i], name, out->size, 0)) {
            out->kind = BAGS_PATH_FILE;
            out->member = &a->members[i];
        }
    }
    bags_buffer_free(&memory);
    return 0;
}

static int archive_kind(void *user, const char *path, bags_path_kind *kind) {
    archive_path at;
    int error = archive_look_up((const bags_archive *)user, path, &at);
    if (!error)
        *kind = at.kind;
    return error;
}

/* List each name in a directory once. All members below one child are adjacent in the
 * array. */
static int archive_list(void *user, const char *path,
    int (*each)(void *each_user, const char *name), void *each_user) {
    const bags_archive *a = (const bags_archive *)user;
    bags_buffer child = bags_buffer_of(&a->allocator);
    archive_path at;
    int error = archive_look_up(a, path, &at);
    size_t i = at.first, start = at.size ? at.size + 1 : 0;
    if (!error && at.kind != BAGS_PATH_DIRECTORY)
        error = at.kind == BAGS_PATH_FILE ? ENOTDIR : ENOENT;
    while (!error && archive_is_below(a, i, at.name, at.size)) {
        const archive_member *m = &a->members[i];
        const char *name = m->name.text + start;
        size_t size = m->name_size - start;
        const char *slash = (const char *)memchr(name, '/', size);
        size = slash ? (size_t)(slash - name) : size;
        /* '0' is the character after '/', so this finds the first name not below the
         * child. */
        i = slash && size > 0 ? archive_search(a, m->name.text, start + size, '/' + 1)
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
    return error;
}

/* Announce the first bytes (including the header) and last bytes of a member that is
 * about to be opened. */
static void archive_expect_member(const bags_archive *a, const archive_member *m) {
    bool is_small = m->size <= ARCHIVE_SOON_TABLE;
    archive_expect(a, m->offset, ARCHIVE_SOON_START + (is_small ? m->size : 0));
    if (!is_small)
        archive_expect(a, m->stop - ARCHIVE_SOON_TABLE, ARCHIVE_SOON_TABLE);
}

static void archive_expect_path(void *user, const char *path) {
    const bags_archive *a = (const bags_archive *)user;
    archive_path at;
    if (!archive_look_up(a, path, &at) && at.member)
        archive_expect_member(a, at.member);
}

static int archive_close(void *user, void *file) {
    (void)user;
    format_state_close(file);
    return 0;
}

/* Call archive_zip_locate and convert its code to an errno. */
static int archive_locate(const bags_archive *a, archive_member *m, bags_error *err) {
    archive_window window;
    memset(&window, 0, sizeof window);
    window.buffer = bags_buffer_of(&a->allocator);
    window.step = ARCHIVE_SOON_START; /* usually reads the entire header at once */
    err->system = 0;
    bags_code code = m->located ? BAGS_OK : archive_zip_locate(a, &window, m, err);
    bags_buffer_free(&window.buffer);
    return !code                       ? 0
           : err->system               ? err->system
           : code == BAGS_ERROR_MEMORY ? ENOMEM
                                       : EBADMSG;
}

/* The local header is read here rather than when the archive is opened, because a
 * dataset with a million members would then need a million reads. */
static int archive_open(void *user, const char *path, int mode, void **file) {
    const bags_archive *a = (const bags_archive *)user;
    archive_path at;
    bags_error ignored;
    if (mode != BAGS_IO_READ)
        return EROFS;
    int error = archive_look_up(a, path, &at);
    if (!error && at.kind != BAGS_PATH_FILE)
        error = at.kind == BAGS_PATH_NONE ? ENOENT : EISDIR;
    if (!error)
        error = at.member->error;
    if (error)
        return error;
    archive_expect_member(a, at.member);
    archive_file *f = (archive_file *)format_state(&a->allocator, sizeof *f, &ignored);
    if (!f)
        return ENOMEM;
    f->member = *at.member;
    error = archive_locate(a, &f->member, &ignored);
    if (error)
        archive_close(user, f);
    else
        *file = f;
    return error;
}

static int archive_size(void *user, void *file, uint64_t *size) {
    (void)user;
    *size = ((const archive_file *)file)->member.size;
    return 0;
}

/* Turn a read of a member into a read of the archive. */
static void archive_move_read(const bags_archive *a, bags_io_read *read) {
    const archive_member *m = &((const archive_file *)read->file)->member;
    uint64_t rest = read->offset < m->size ? m->size - read->offset : 0;
    read->size = read->size < rest ? read->size : (size_t)rest;
    read->offset += m->offset;
    read->file = a->file;
}

static int archive_read_at(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    const bags_archive *a = (const bags_archive *)user;
    bags_io_read read = {NULL, offset, NULL, size, 0};
    read.file = file;
    archive_move_read(a, &read);
    *done = 0;
    return read.size == 0 ? 0
                          : a->base.read_at(a->base.user, a->file, read.offset, data,
                                read.size, done);
}

/* Forward to the underlying hooks in one call, with offsets in the archive. */
static void archive_read_many(void *user, bags_io_read *reads, size_t count) {
    const bags_archive *a = (const bags_archive *)user;
    bags_buffer memory = bags_buffer_of(&a->allocator);
    if (bags_buffer_reserve(&memory, count * sizeof *reads, NULL))
        return; /* the reads are then done one by one */
    bags_io_read *moved = (bags_io_read *)(void *)memory.data;
    for (size_t i = 0; i < count; i++) {
        moved[i] = reads[i];
        archive_move_read(a, &moved[i]);
    }
    a->base.read_many(a->base.user, moved, count);
    for (size_t i = 0; i < count; i++)
        reads[i].done = moved[i].done;
    bags_buffer_free(&memory);
}

/* Explain why a member could not be opened, or the underlying hooks' error. */
static void archive_explain(
    void *user, const char *path, int error, char *text, size_t size) {
    const bags_archive *a = (const bags_archive *)user;
    archive_path at;
    bags_error err;
    *text = 0;
    int failed = archive_look_up(a, path, &at);
    if (!failed && at.member && !at.member->located && error == EBADMSG) {
        archive_member member = *at.member;
        if (archive_locate(a, &member, &err))
            (void)snprintf(text, size, "%s", err.message);
    } else if (!failed && at.member && error == ENOTSUP) {
        (void)snprintf(text, size, "compressed or encrypted in the archive");
    } else if (a->base.explain) {
        a->base.explain(a->base.user, a->path, error, text, size);
    }
}

/* The archive is mapped once, and a member is a range of that map. */
static int archive_map(void *user, void *file, size_t size, const void **data) {
    const bags_archive *a = (const bags_archive *)user;
    const archive_member *m = &((const archive_file *)file)->member;
    if (!a->map || size > m->size)
        return EINVAL;
    *data = a->map + m->offset;
    return 0;
}

/* Nothing to do: the map belongs to the archive. */
static int archive_unmap(void *user, const void *data, size_t size) {
    (void)user;
    (void)data;
    (void)size;
    return 0;
}

static int archive_advise(void *user, void *file, const void *map, uint64_t offset,
    uint64_t size, bags_advice advice) {
    const bags_archive *a = (const bags_archive *)user;
    if (!map)
        offset += ((const archive_file *)file)->member.offset;
    return a->base.advise(
        a->base.user, map ? NULL : a->file, map, offset, size, advice);
}

static void archive_set_hooks(bags_archive *a) {
    a->io.user = a;
    a->io.open = archive_open;
    a->io.close = archive_close;
    a->io.size = archive_size;
    a->io.read_at = archive_read_at;
    a->io.map = a->map ? archive_map : NULL;
    a->io.unmap = archive_unmap;
    a->io.kind = archive_kind;
    a->io.list = archive_list;
    a->io.advise = a->base.advise ? archive_advise : NULL;
    a->io.read_many = a->base.read_many ? archive_read_many : NULL;
    a->io.expect = a->base.read_many && !a->base.map ? archive_expect_path : NULL;
    a->io.explain = archive_explain;
}

/* ---- open and close ---- */

/* Find a zip's end record and store its offset in *end. Without one, the file is a
 * tar. */
static bags_code archive_zip_find_end(const bags_archive *a, archive_window *w,
    uint64_t *end, bool *is_zip, bags_error *err) {
    size_t most = ARCHIVE_END_SIZE + ARCHIVE_COMMENT_MOST;
    const unsigned char *p = NULL;
    most = a->size < most ? (size_t)a->size : most;
    bags_code code = archive_bytes(a, w, a->size - most, most, &p, err);
    *is_zip = false;
    for (size_t after = ARCHIVE_END_SIZE; !code && !*is_zip && after <= most; after++) {
        const unsigned char *record = p + most - after;
        *end = a->size - after;
        *is_zip = archive_is_marked(record, 5, 6) &&
                  bags_load_bytes(record + 20, 2, false) == after - ARCHIVE_END_SIZE;
    }
    return code;
}

/* Names move while they are being collected, so pointers to them are set afterwards. */
static bags_code archive_load(bags_archive *a, bags_error *err) {
    uint64_t end = 0, start = 0;
    bool is_zip = false;
    archive_window window;
    archive_tar_next next;
    memset(&window, 0, sizeof window);
    memset(&next, 0, sizeof next);
    window.buffer = next.name = bags_buffer_of(&a->allocator);
    bags_code code = archive_zip_find_end(a, &window, &end, &is_zip, err);
    if (!code)
        code = is_zip ? archive_zip_read(a, &window, end, &start, err)
                      : archive_tar_read(a, &window, &next, err);
    bags_buffer_free(&window.buffer);
    bags_buffer_free(&next.name);
    if (code)
        return code;
    a->members = (archive_member *)(void *)a->members_memory.data;
    for (size_t i = 0; i < a->length; i++)
        a->members[i].name.text = (const char *)a->names.data + a->members[i].name.at;
    if (is_zip)
        code = archive_zip_check_overlap(a, start, err);
    return code ? code : archive_sort(a, err);
}

/* Map last, because the size may be rejected first. */
static bags_code archive_start(bags_archive *a, bags_error *err) {
    const void *map = NULL;
    int error = a->base.open(a->base.user, a->path, BAGS_IO_READ, &a->file);
    if (error) {
        a->file = NULL;
        return bags_fail_io(&a->base, error, a->path, "open", err);
    }
    error = a->base.size(a->base.user, a->file, &a->size);
    if (error)
        return bags_fail_io(&a->base, error, a->path, "get the size of", err);
    bags_code code = archive_load(a, err);
    if (!code && a->base.map && a->size > 0 && a->size <= SIZE_MAX &&
        !a->base.map(a->base.user, a->file, (size_t)a->size, &map))
        a->map = (const unsigned char *)map;
    return code;
}

bags_archive *bags_archive_open(
    const char *path, const bags_archive_options *options, bags_error *err) {
    bags_error ignored = {BAGS_OK, 0, "", 0};
    const bags_allocator *allocator = options ? options->env.allocator : NULL;
    err = err ? err : &ignored;
    if (!path || !*path) {
        bags_fail(err, BAGS_ERROR_ARGUMENT, "the path is empty");
        return NULL;
    }
    size_t size = strlen(path);
    bags_archive *a =
        (bags_archive *)format_state(allocator, sizeof *a + size + 1, err);
    if (!a)
        return NULL;
    if (allocator)
        a->allocator = *allocator;
    a->names = a->members_memory = bags_buffer_of(allocator);
    a->path = (const char *)memcpy(a + 1, path, size + 1);
    a->path_size = size;
    a->base = options && options->env.io ? *options->env.io : *bags_io_local();
    a->max_members = options && options->max_members ? options->max_members
                                                     : BAGS_ARCHIVE_MAX_MEMBERS;
    if (a->max_members > SIZE_MAX / sizeof(archive_member) - 1)
        a->max_members = SIZE_MAX / sizeof(archive_member) - 1;
    if (archive_start(a, err)) {
        bags_archive_close(a);
        return NULL;
    }
    archive_set_hooks(a);
    return a;
}

const bags_io *bags_archive_io(const bags_archive *archive) { return &archive->io; }

void bags_archive_close(bags_archive *archive) {
    bags_archive *a = archive;
    if (!a)
        return;
    if (a->map)
        a->base.unmap(a->base.user, a->map, (size_t)a->size);
    if (a->file)
        a->base.close(a->base.user, a->file);
    bags_buffer_free(&a->names);
    bags_buffer_free(&a->members_memory);
    format_state_close(a);
}
