/*
 * webdataset.c - imports tar files of samples, as webdataset reads them. Uses
 * libarchive, and also zlib, because libarchive ignores gzip checksums.
 *
 * Consecutive members "dir/000017.jpg" and "dir/000017.seg.png" form the sample with
 * the key "dir/000017" and the fields `jpg` and `seg.png` (in lower case). A key that
 * reappears later in the same tar is an error, since its members would become two
 * samples. Members that are not files, or whose names have no such ending, begin with a
 * dot, or look like __this__, belong to no sample and are left out. A link named like a
 * sample's member is an error. Tar files may be compressed (gzip, zstd, xz, bzip2,
 * lz4).
 *
 * A first pass over the members finds the fields. `__key__` is utf8. The other fields
 * store the members' bytes: jpeg, png, ... if all values of the field begin like such a
 * file, utf8 if all are text (see bags_import_guess), otherwise bytes. A field missing
 * from some samples is a sequence of 0 or 1. Tar has checksums for its headers only.
 */
#include "detect.h"
#include "gzip.h"
#include "text.h"
#include "try.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>

#define WD_FIELDS 4096     /* maximum number of fields */
#define WD_BLOCK (1 << 16) /* bytes per read */
#define WD_MAGIC 16        /* bytes that identify a file's type */
/* The maximum compression ratio of a larger member. */
#define WD_LARGE ((size_t)256 << 20)
#define WD_RATIO 100

typedef struct wd_state {
    bags_import_stream stream; /* bytes not yet requested by libarchive */
    bool failed;               /* reading them failed: the error is in s->err */
    struct archive *archive;
    bool in_member; /* libarchive has read a header */
    bags_buffer *data, *name, *key;
    const char *ending; /* ending of the next member, whose key is `name`, */
    bool pending;       /* if there is one */
    uint64_t stop;      /* where the last header ended in the tar */
    uint64_t next;      /* index of the next sample */
    bags_buffer *keys;  /* keys in the tar: `keys_size` bytes, each key with its NUL */
    size_t keys_size;
    bags_buffer *sorted; /* `key_count` pointers to them */
    size_t key_count;
    bool learned; /* the first pass is complete */
} wd_state;

/* ---- bytes ---- */

static la_ssize_t wd_get(struct archive *archive, void *user, const void **data) {
    bags_source *s = (bags_source *)user;
    wd_state *w = (wd_state *)s->state;
    bags_view part = {NULL, 0};
    w->failed = bags_import_stream_next(s, &w->stream, &part) != 0;
    *data = part.data;
    if (!w->failed)
        return (la_ssize_t)part.size;
    archive_set_error(archive, EIO, "%s", s->err->message);
    return -1;
}

static la_int64_t wd_skip(struct archive *archive, void *user, la_int64_t request) {
    bags_source *s = (bags_source *)user;
    bags_import_stream *stream = &((wd_state *)s->state)->stream;
    uint64_t left = s->file.size - stream->offset;
    (void)archive;
    if (stream->gzip)
        return 0;
    if ((uint64_t)request > left)
        request = (la_int64_t)left;
    stream->offset += (uint64_t)request;
    return request;
}

/* ---- members ---- */

/* libarchive's position in the tar. */
static uint64_t wd_position(const wd_state *w) {
    la_int64_t at = archive_filter_bytes(w->archive, 0);
    return at < 0 ? 0 : (uint64_t)at;
}

static bags_code wd_fail(bags_source *s) {
    const wd_state *w = (const wd_state *)s->state;
    const char *what = archive_error_string(w->archive);
    if (w->failed)
        return s->err->code;
    return bags_source_fail(s,
        archive_errno(w->archive) == ENOMEM ? BAGS_ERROR_MEMORY : BAGS_ERROR_CORRUPT,
        "before byte %" PRIu64 " of the tar: %s", wd_position(w),
        what ? what : "invalid");
}

static void wd_close(bags_source *s) {
    wd_state *w = (wd_state *)s->state;
    archive_read_free(w->archive);
    w->archive = NULL;
    bags_import_stream_close(&w->stream);
}

static bags_code wd_open_file(bags_source *s) {
    wd_state *w = (wd_state *)s->state;
    bags_code code = bags_source_next_file(s);
    if (code || s->ended)
        return code;
    struct archive *archive = w->archive = archive_read_new();
    FORMAT_TRY(
        archive ? bags_import_stream_open(s, &w->stream) : bags_source_no_memory(s));
    w->in_member = w->failed = false;
    w->stop = 0;
    archive_read_support_filter_zstd(archive);
    archive_read_support_filter_xz(archive);
    archive_read_support_filter_bzip2(archive);
    archive_read_support_filter_lz4(archive);
    archive_read_support_format_tar(archive);
    /* Otherwise, data after the end of the first archive would be ignored. */
    archive_read_set_options(archive, "read_concatenated_archives");
    if (archive_read_open2(archive, s, NULL, wd_get, wd_skip, NULL))
        return wd_fail(s);
    return BAGS_OK;
}

/* Read the next member's header into *entry, or set it to NULL at the end. Zeros must
 * mark the end, since a truncated file may end between two members. */
static bags_code wd_header(bags_source *s, struct archive_entry **entry) {
    wd_state *w = (wd_state *)s->state;
    if (w->in_member && archive_read_data_skip(w->archive) < ARCHIVE_WARN)
        return wd_fail(s);
    w->stop = wd_position(w);
    int result = archive_read_next_header(w->archive, entry);
    /* A warning: the locale cannot represent a name. */
    w->in_member = result == ARCHIVE_OK || result == ARCHIVE_WARN;
    if (w->in_member)
        return BAGS_OK;
    *entry = NULL;
    if (result != ARCHIVE_EOF)
        return wd_fail(s);
    if (wd_position(w) < w->stop + 512)
        return bags_source_fail(s, BAGS_ERROR_CORRUPT,
            "truncated: the tar ends at byte %" PRIu64
            " without the zeros that mark its end",
            w->stop);
    return BAGS_OK;
}

/* Split a member's name into its key, up to the first dot in the last path component,
 * and the ending after that dot. `pending` is set unless the member belongs to no
 * sample. */
static bags_code wd_split(bags_source *s, const char *path) {
    wd_state *w = (wd_state *)s->state;
    size_t size = strlen(path), first = strcspn(path, "/");
    if (first >= 4 && !memcmp(path, "__", 2) && !memcmp(path + first - 2, "__", 2))
        return BAGS_OK;
    FORMAT_TRY(bags_source_reserve(s, &w->name, size));
    char *name = (char *)memcpy(w->name->data, path, size + 1);
    char *base = name + (bags_import_base(name) - name);
    char *dot = strchr(base, '.');
    if (!dot || dot == base)
        return BAGS_OK;
    *dot = 0;
    for (char *c = dot + 1; *c; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
    w->ending = dot + 1;
    w->pending = true;
    return BAGS_OK;
}

/* Fail because of a link in a sample: its content is elsewhere. */
static bags_code wd_refuse_link(bags_source *s, const char *name, bool hard) {
    return bags_source_fail(s, BAGS_ERROR_TYPE,
        "member \"%.200s\": %s link, not a file; write the tar with --%sdereference",
        name, hard ? "hard" : "symbolic", hard ? "hard-" : "");
}

/* Find the next member of a sample. `pending` becomes false at the end of all files. */
static bags_code wd_advance(bags_source *s) {
    wd_state *w = (wd_state *)s->state;
    for (w->pending = s->ended = false; !w->pending;) {
        struct archive_entry *entry = NULL;
        if (!w->archive)
            FORMAT_TRY(wd_open_file(s));
        if (s->ended)
            return BAGS_OK;
        FORMAT_TRY(wd_header(s, &entry));
        if (!entry) {
            wd_close(s);
            continue;
        }
        const char *name = archive_entry_pathname(entry);
        if (!name)
            name = archive_entry_pathname_utf8(entry);
        if (!name)
            return wd_fail(s);
        bool hard = archive_entry_hardlink(entry) != NULL;
        bool link = hard || archive_entry_filetype(entry) == AE_IFLNK;
        if (link || archive_entry_filetype(entry) == AE_IFREG)
            FORMAT_TRY(wd_split(s, name));
        if (link && w->pending)
            return wd_refuse_link(s, name, hard);
        if (!w->pending && !w->learned && archive_entry_filetype(entry) != AE_IFDIR)
            bags_source_leave_out(s, "member", 1, "%s", name);
    }
    return BAGS_OK;
}

/* Read the member, at most `limit` bytes, into `data` at `offset`. `data` grows with
 * the bytes actually read, whatever size the header states. */
static bags_code wd_read_member(
    bags_source *s, size_t offset, size_t limit, size_t *size) {
    wd_state *w = (wd_state *)s->state;
    for (*size = 0; *size < limit;) {
        size_t part = limit - *size < WD_BLOCK ? limit - *size : WD_BLOCK;
        if (offset + *size > SIZE_MAX / 2)
            return bags_source_no_memory(s);
        FORMAT_TRY(bags_source_reserve(s, &w->data, offset + *size + part));
        la_ssize_t done =
            archive_read_data(w->archive, w->data->data + offset + *size, part);
        if (done < 0)
            return wd_fail(s);
        if (done == 0)
            break;
        *size += (size_t)done;
        if (*size > WD_LARGE && *size / WD_RATIO > w->stream.offset)
            return bags_source_fail(s, BAGS_ERROR_LIMIT,
                "member \"%.200s.%.100s\": too large when decompressed (more "
                "than %d bytes of one)",
                (const char *)w->name->data, w->ending, WD_RATIO);
    }
    return BAGS_OK;
}

/* ---- samples ---- */

/* Find the field of the pending member, and fail if its sample already has that field.
 * With `add`, add a new field. */
static bags_code wd_column(bags_source *s, bool add, bags_import_column **column) {
    wd_state *w = (wd_state *)s->state;
    const char *fault = NULL;
    bool full = s->column_count == WD_FIELDS;
    *column = bags_source_column(s, w->ending, strlen(w->ending), add && !full);
    if (!*column && add && !full)
        return BAGS_ERROR_MEMORY;
    if (!*column)
        fault = add ? "too many fields (maximum 4096)"
                    : "is new: the file changed while it was read";
    else if ((*column)->last == w->next)
        fault = "duplicate in its sample";
    if (fault)
        return bags_source_fail(s, *column ? BAGS_ERROR_CORRUPT : BAGS_ERROR_LIMIT,
            "member \"%.200s.%.100s\": %s", (const char *)w->name->data, w->ending,
            fault);
    (*column)->last = w->next;
    return BAGS_OK;
}

/* The first pass: find the type of each field. For files that are not text, the first
 * bytes suffice. */
static bags_code wd_learn(bags_source *s) {
    wd_state *w = (wd_state *)s->state;
    bags_import_column *column;
    size_t size;
    FORMAT_TRY(wd_column(s, true, &column));
    column->seen++;
    bool all = !column->not_text;
    FORMAT_TRY(wd_read_member(s, 0, all ? SIZE_MAX : WD_MAGIC, &size));
    bags_import_guess(column, w->data->data, size, all);
    return BAGS_OK;
}

static bags_code wd_take(bags_source *s, size_t *offset) {
    bags_import_column *column;
    FORMAT_TRY(wd_column(s, false, &column));
    bags_value *value = &s->values[column->field];
    *value = bags_blob(NULL, 0);
    value->uint = *offset; /* replaced once all members are read */
    bags_code code = wd_read_member(s, *offset, SIZE_MAX, &value->size);
    *offset += value->size;
    s->entries[column->field].count = 1;
    return code;
}

typedef enum wd_task { WD_SKIP, WD_LEARN, WD_TAKE } wd_task;

/* Read the next sample; its first member is pending. */
static bags_code wd_sample(bags_source *s, wd_task task) {
    wd_state *w = (wd_state *)s->state;
    const char *name = (const char *)w->name->data;
    size_t size = strlen(name) + 1, file = s->path_next, offset = 0;
    FORMAT_TRY(bags_source_reserve(s, &w->key, size));
    memcpy(w->key->data, name, size);
    w->next++;
    while (w->pending && s->path_next == file &&
           !strcmp((const char *)w->name->data, (const char *)w->key->data)) {
        FORMAT_TRY(task == WD_LEARN  ? wd_learn(s)
                   : task == WD_TAKE ? wd_take(s, &offset)
                                     : BAGS_OK);
        FORMAT_TRY(wd_advance(s));
    }
    return BAGS_OK;
}

/* ---- keys ---- */

static bags_code wd_note_key(bags_source *s) {
    wd_state *w = (wd_state *)s->state;
    size_t size = strlen((const char *)w->key->data) + 1;
    FORMAT_TRY(bags_source_reserve(s, &w->keys, w->keys_size + size));
    memcpy(w->keys->data + w->keys_size, w->key->data, size);
    w->keys_size += size;
    w->key_count++;
    return BAGS_OK;
}

/* Fail if a tar file has duplicate keys, and forget its keys. */
static bags_code wd_check_keys(bags_source *s, size_t file) {
    wd_state *w = (wd_state *)s->state;
    const char *key = (const char *)w->keys->data;
    FORMAT_TRY(w->key_count < SIZE_MAX / sizeof key
                   ? bags_source_reserve(s, &w->sorted, w->key_count * sizeof key)
                   : bags_source_no_memory(s));
    const char **sorted = (const char **)(void *)w->sorted->data;
    for (size_t i = 0; i < w->key_count; i++, key += strlen(key) + 1)
        sorted[i] = key;
    qsort(sorted, w->key_count, sizeof *sorted, format_compare_texts);
    for (size_t i = 1; i < w->key_count; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0) {
            s->where = s->paths[file];
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "key \"%.200s\" appears again after members of another key; write the "
                "tar "
                "with sorted members: tar --sort=name",
                sorted[i]);
        }
    w->keys_size = w->key_count = 0;
    return BAGS_OK;
}

/* ---- the source ---- */

static bags_code wd_open(bags_source *s) {
    wd_state *w = (wd_state *)s->state;
    bool not_utf8 = false;
    FORMAT_TRY(bags_source_files(s, bags_import_is_webdataset_name));
    /* The first pass. */
    FORMAT_TRY(wd_advance(s));
    while (w->pending) {
        size_t file = s->path_next - 1;
        FORMAT_TRY(wd_sample(s, WD_LEARN));
        FORMAT_TRY(wd_note_key(s));
        if (!w->pending || s->path_next - 1 != file)
            FORMAT_TRY(wd_check_keys(s, file));
        const char *key = (const char *)w->key->data;
        not_utf8 = not_utf8 || !bags_utf8_valid(key, strlen(key), NULL);
    }
    s->length = w->next;
    if (s->length == 0)
        bags_source_note(s, s->path, "no samples: the fields are not known");
    s->path_next = 0;
    w->next = 0;
    w->learned = true;
    bags_source_field(s, "__key__", not_utf8 ? "bytes" : "utf8");
    bags_source_add_columns(s, bags_import_guessed);
    return wd_advance(s);
}

static bags_code wd_read(bags_source *s, uint64_t index) {
    wd_state *w = (wd_state *)s->state;
    while (w->pending && w->next < index)
        FORMAT_TRY(wd_sample(s, WD_SKIP));
    s->ended = !w->pending;
    if (s->ended)
        return BAGS_OK;
    for (size_t i = 1; i < s->count; i++)
        s->entries[i].count = 0;
    FORMAT_TRY(wd_sample(s, WD_TAKE));
    s->ended = false; /* only the members after it may be missing */
    const char *key = (const char *)w->key->data;
    s->values[0] = bags_blob(key, strlen(key));
    for (size_t i = 0; i < s->column_count; i++) {
        const bags_import_column *column = s->columns[i];
        bags_value *value = &s->values[column->field];
        value->data = w->data->data + value->uint;
        value->uint = 0;
        if (!column->sequence && column->last != w->next)
            return bags_source_fail(s, BAGS_ERROR_CORRUPT,
                "sample \"%.200s\": has no %s: the file changed while it "
                "was read",
                key, column->name);
    }
    return BAGS_OK;
}

const bags_importer bags_import_webdataset = {"webdataset", bags_import_is_webdataset,
    sizeof(wd_state), wd_open, wd_read, wd_close};
