/*
 * webdataset.c - tar files of samples, as webdataset reads them. On libarchive,
 * and on zlib, because libarchive ignores the checksums of gzip.
 *
 * The members "dir/000017.jpg" and "dir/000017.seg.png", one after the other, are
 * the sample with the key "dir/000017" and the fields `jpg` and `seg.png` (in lower
 * case). Members that are not files, whose names have no such ending, begin with a
 * dot, or are like __this__, belong to no sample. A tar file may be compressed
 * (gzip, zstd, xz, bzip2, lz4).
 *
 * A first pass over the members finds the fields. `__key__` is utf8; the others are
 * the members' bytes, of the type that all of a field begin with, or utf8 if all are
 * text (see bags_import_guess), otherwise bytes. A field that some samples lack is a
 * sequence of 0 or 1. Tar has checksums of its headers only.
 */
#include "import.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <zlib.h>

#define WD_FIELDS 4096     /* the most fields */
#define WD_BLOCK (1 << 16) /* bytes per read */
#define WD_MAGIC 16        /* bytes that show what a file is */

typedef struct wd_field {
    const char *name;
    uint64_t seen, last; /* samples that have it; the last of them, from 1 */
    bags_import_guess guess;
    bool sequence;
    bags_value value; /* of the current sample */
    size_t offset;    /* where it begins in `data` */
} wd_field;

typedef struct wd_source {
    bags_import_arena arena; /* which contains this */
    char **paths;
    size_t path_count, path;
    bags_import_file file;
    uint64_t offset; /* of the bytes that libarchive has not requested yet */
    bags_error io_error;
    bool gzip, in_gzip; /* `zip` is in use; it is within a gzip member */
    z_stream zip;
    struct archive *archive;
    bool in_member; /* it has read a header */
    bags_buffer packed, block, data, name_buffer, key_buffer, fields_buffer;
    const char *key, *ending; /* of the member that is next, */
    bool pending;             /* if there is one */
    uint64_t stop;            /* where it ended in the tar */
    uint64_t next;            /* the index of the next sample */
    bool not_utf8;            /* some key */
    wd_field *fields;         /* sorted by name */
    size_t count;
    bags_field *described;
    bags_entry *entries;
    bags_value key_value;
} wd_source;

/* ---- members ---- */

/* Read the next bytes of the file. */
static bags_code wd_get_file(wd_source *source, void *to, size_t *size) {
    uint64_t left = source->file.size - source->offset;
    *size = left < WD_BLOCK ? (size_t)left : WD_BLOCK;
    uint64_t offset = source->offset;
    source->offset += *size;
    return bags_import_file_read(
        &source->file, offset, to, *size, &source->io_error);
}

/* Read and decompress the next bytes, 0 at the end. */
static bags_code wd_get_gzip(wd_source *source, void *to, size_t *size) {
    z_stream *zip = &source->zip;
    zip->next_out = (Bytef *)to;
    zip->avail_out = WD_BLOCK;
    while (zip->avail_out == WD_BLOCK) {
        if (zip->avail_in == 0) {
            size_t more;
            if (wd_get_file(source, source->packed.data, &more))
                return source->io_error.code;
            zip->next_in = source->packed.data;
            zip->avail_in = (uInt)more;
        }
        if (zip->avail_in == 0 && !source->in_gzip)
            break;
        if (!source->in_gzip)
            inflateReset(zip);
        int result = inflate(zip, Z_NO_FLUSH);
        source->in_gzip = result != Z_STREAM_END;
        if (result != Z_OK && result != Z_STREAM_END)
            return bags_fail(&source->io_error,
                result == Z_MEM_ERROR ? BAGS_ERROR_MEMORY : BAGS_ERROR_CORRUPT,
                "%s: gzip before byte %" PRIu64 ": %s", source->file.path,
                source->offset - zip->avail_in,
                result == Z_BUF_ERROR ? "truncated"
                : zip->msg            ? zip->msg
                                      : "invalid");
    }
    *size = WD_BLOCK - zip->avail_out;
    return BAGS_OK;
}

static la_ssize_t wd_get(
    struct archive *archive, void *user, const void **data) {
    wd_source *source = (wd_source *)user;
    size_t size = 0;
    *data = source->block.data;
    bags_code code = source->gzip
                         ? wd_get_gzip(source, source->block.data, &size)
                         : wd_get_file(source, source->block.data, &size);
    if (!code)
        return (la_ssize_t)size;
    archive_set_error(archive, EIO, "%s", source->io_error.message);
    return -1;
}

static la_int64_t wd_skip(
    struct archive *archive, void *user, la_int64_t request) {
    wd_source *source = (wd_source *)user;
    uint64_t left = source->file.size - source->offset;
    (void)archive;
    if (source->gzip)
        return 0;
    if ((uint64_t)request > left)
        request = (la_int64_t)left;
    source->offset += (uint64_t)request;
    return request;
}

/* Where libarchive is in the tar. */
static uint64_t wd_position(const wd_source *source) {
    la_int64_t at = archive_filter_bytes(source->archive, 0);
    return at < 0 ? 0 : (uint64_t)at;
}

static bags_code wd_fail(wd_source *source, bags_error *err) {
    const char *what = archive_error_string(source->archive);
    if (source->io_error.code) {
        *err = source->io_error;
        return err->code;
    }
    return bags_fail(err,
        archive_errno(source->archive) == ENOMEM ? BAGS_ERROR_MEMORY
                                                 : BAGS_ERROR_CORRUPT,
        "%s: before byte %" PRIu64 " of the tar: %s", source->file.path,
        wd_position(source), what ? what : "invalid");
}

static void wd_end_file(wd_source *source) {
    archive_read_free(source->archive);
    source->archive = NULL;
    if (source->gzip)
        inflateEnd(&source->zip);
    source->gzip = false;
    bags_import_file_close(&source->file);
}

static bags_code wd_open_file(wd_source *source, bags_error *err) {
    const char *path = source->paths[source->path];
    unsigned char magic[2] = {0, 0};
    bags_code code = bags_import_file_open(&source->file, path, err);
    if (code)
        return code;
    if (source->file.size >= 2)
        code = bags_import_file_read(&source->file, 0, magic, 2, err);
    if (code)
        return code;
    struct archive *archive = source->archive = archive_read_new();
    memset(&source->zip, 0, sizeof source->zip);
    bool packed = magic[0] == 0x1F && magic[1] == 0x8B;
    source->gzip = packed && inflateInit2(&source->zip, 15 + 16) == Z_OK;
    if (!archive || packed != source->gzip)
        return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
    source->in_gzip = source->in_member = false;
    source->offset = source->stop = 0;
    source->io_error.code = BAGS_OK;
    archive_read_support_filter_zstd(archive);
    archive_read_support_filter_xz(archive);
    archive_read_support_filter_bzip2(archive);
    archive_read_support_filter_lz4(archive);
    archive_read_support_format_tar(archive);
    /* Otherwise what follows the end of the first would be ignored. */
    archive_read_set_options(archive, "read_concatenated_archives");
    if (archive_read_open2(archive, source, NULL, wd_get, wd_skip, NULL))
        return wd_fail(source, err);
    return BAGS_OK;
}

/* The next member's header, in *entry: NULL at the end, which must be marked by
 * zeros, since a truncated file may end between two members. */
static bags_code wd_header(
    wd_source *source, struct archive_entry **entry, bags_error *err) {
    if (source->in_member &&
        archive_read_data_skip(source->archive) < ARCHIVE_WARN)
        return wd_fail(source, err);
    source->stop = wd_position(source);
    int result = archive_read_next_header(source->archive, entry);
    /* A warning: a name that this locale does not have. */
    source->in_member = result == ARCHIVE_OK || result == ARCHIVE_WARN;
    if (source->in_member)
        return BAGS_OK;
    *entry = NULL;
    if (result != ARCHIVE_EOF)
        return wd_fail(source, err);
    if (wd_position(source) < source->stop + 512)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: truncated: the tar ends at byte %" PRIu64
            " without the zeros that mark its end",
            source->file.path, source->stop);
    return BAGS_OK;
}

/* Split a member's name: its key, up to the first dot of its last part, and the
 * ending after it. *belongs becomes false if it belongs to no sample. */
static bags_code wd_split(
    wd_source *source, const char *path, bool *belongs, bags_error *err) {
    size_t size = strlen(path), first = strcspn(path, "/");
    *belongs = false;
    if (first >= 4 && !memcmp(path, "__", 2) &&
        !memcmp(path + first - 2, "__", 2))
        return BAGS_OK;
    bags_code code = bags_buffer_reserve(&source->name_buffer, size + 1, err);
    if (code)
        return code;
    char *name = (char *)source->name_buffer.data;
    memcpy(name, path, size + 1);
    char *base = strrchr(name, '/');
    base = base ? base + 1 : name;
    char *dot = strchr(base, '.');
    if (!dot || dot == base)
        return BAGS_OK;
    *dot = 0;
    for (char *c = dot + 1; *c; c++)
        *c = (char)(*c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
    source->key = name;
    source->ending = dot + 1;
    *belongs = true;
    return BAGS_OK;
}

/* Find the next member of a sample: `pending` becomes false at the end of all
 * files. */
static bags_code wd_advance(wd_source *source, bags_error *err) {
    struct archive_entry *entry;
    for (source->pending = false; !source->pending;) {
        bags_code code = BAGS_OK;
        if (source->path == source->path_count)
            return BAGS_OK;
        if (!source->archive)
            code = wd_open_file(source, err);
        if (code)
            return code;
        code = wd_header(source, &entry, err);
        if (code)
            return code;
        if (!entry) {
            wd_end_file(source);
            source->path++;
            continue;
        }
        const char *name = archive_entry_pathname(entry);
        if (!name)
            name = archive_entry_pathname_utf8(entry);
        if (!name)
            return wd_fail(source, err);
        if (archive_entry_filetype(entry) == AE_IFREG &&
            !archive_entry_hardlink(entry))
            code = wd_split(source, name, &source->pending, err);
        if (code)
            return code;
    }
    return BAGS_OK;
}

/* Read the member, at most `limit` bytes, to `data` from `offset` on. It grows with
 * what there is, whatever size the header states. */
static bags_code wd_read_member(wd_source *source, size_t offset, size_t limit,
    size_t *size, bags_error *err) {
    for (*size = 0; *size < limit;) {
        size_t part = limit - *size < WD_BLOCK ? limit - *size : WD_BLOCK;
        if (offset + *size > SIZE_MAX / 2)
            return bags_fail(err, BAGS_ERROR_MEMORY, "out of memory");
        bags_code code =
            bags_buffer_reserve(&source->data, offset + *size + part, err);
        if (code)
            return code;
        la_ssize_t done = archive_read_data(
            source->archive, source->data.data + offset + *size, part);
        if (done < 0)
            return wd_fail(source, err);
        if (done == 0)
            break;
        *size += (size_t)done;
    }
    return BAGS_OK;
}

/* ---- samples ---- */

static int wd_compare(const void *left, const void *right) {
    return strcmp(
        ((const wd_field *)left)->name, ((const wd_field *)right)->name);
}

/* The field of the pending member, which is in its sample for the first time;
 * NULL on failure. `add` it if it is new. */
static wd_field *wd_find(wd_source *source, bool add, bags_error *err) {
    wd_field sought, *found = NULL;
    memset(&sought, 0, sizeof sought);
    sought.name = source->ending;
    if (source->count)
        found = (wd_field *)bsearch(
            &sought, source->fields, source->count, sizeof sought, wd_compare);
    if (!found && add && source->count < WD_FIELDS) {
        size_t size = (source->count + 1) * sizeof sought;
        sought.name = bags_import_text(
            &source->arena, source->ending, strlen(source->ending), err);
        if (!sought.name ||
            bags_buffer_reserve(&source->fields_buffer, size, err))
            return NULL;
        source->fields = (wd_field *)(void *)source->fields_buffer.data;
        found = source->fields + source->count++;
        while (found > source->fields && wd_compare(&sought, found - 1) < 0) {
            found[0] = found[-1];
            found--;
        }
        *found = sought;
    }
    if (found && found->last != source->next) {
        found->last = source->next;
        found->seen++;
        return found;
    }
    bags_fail(err, found ? BAGS_ERROR_CORRUPT : BAGS_ERROR_LIMIT,
        "%s: member \"%.200s.%.100s\": %s", source->file.path, source->key,
        source->ending,
        found ? "duplicate in its sample"
        : add ? "too many fields (maximum 4096)"
              : "is new: the file changed while it was read");
    return NULL;
}

/* The first pass: learn what a field is. Of files that are not text, the first
 * bytes are enough. */
static bags_code wd_learn(wd_source *source, bags_error *err) {
    size_t size;
    wd_field *field = wd_find(source, true, err);
    if (!field)
        return err->code;
    bool all = !field->guess.not_text;
    bags_code code =
        wd_read_member(source, 0, all ? SIZE_MAX : WD_MAGIC, &size, err);
    if (!code)
        bags_import_guess_add(&field->guess, source->data.data, size, all);
    return code;
}

static bags_code wd_take(wd_source *source, size_t *offset, bags_error *err) {
    wd_field *field = wd_find(source, false, err);
    if (!field)
        return err->code;
    field->offset = *offset;
    bags_code code =
        wd_read_member(source, *offset, SIZE_MAX, &field->value.size, err);
    *offset += field->value.size;
    return code;
}

typedef enum wd_task { WD_SKIP, WD_LEARN, WD_TAKE } wd_task;

/* Read the next sample, whose first member is pending. */
static bags_code wd_sample(wd_source *source, wd_task task, bags_error *err) {
    size_t size = strlen(source->key) + 1, path = source->path, offset = 0;
    bags_code code = bags_buffer_reserve(&source->key_buffer, size, err);
    if (code)
        return code;
    const char *key = (const char *)source->key_buffer.data;
    memcpy(source->key_buffer.data, source->key, size);
    source->next++;
    while (!code && source->pending && source->path == path &&
           !strcmp(source->key, key)) {
        code = task == WD_LEARN  ? wd_learn(source, err)
               : task == WD_TAKE ? wd_take(source, &offset, err)
                                 : BAGS_OK;
        if (!code)
            code = wd_advance(source, err);
    }
    return code;
}

/* ---- the source ---- */

static bags_code wd_make_fields(wd_source *source, bags_error *err) {
    size_t count = source->count + 1;
    source->described = (bags_field *)bags_import_alloc(
        &source->arena, count, sizeof *source->described, err);
    source->entries = (bags_entry *)bags_import_alloc(
        &source->arena, count, sizeof *source->entries, err);
    if (!source->described || !source->entries)
        return BAGS_ERROR_MEMORY;
    source->described[0].name = "__key__";
    source->described[0].type = source->not_utf8 ? "bytes" : "utf8";
    for (size_t i = 0; i < source->count; i++) {
        wd_field *field = &source->fields[i];
        field->sequence = field->seen < source->next;
        field->last = 0;
        source->described[i + 1].name = field->name;
        source->described[i + 1].type = bags_import_format(&source->arena, err,
            "%s%s", bags_import_guess_type(&field->guess),
            field->sequence ? "[]" : "");
        if (!source->described[i + 1].type)
            return BAGS_ERROR_MEMORY;
    }
    bags_code code = bags_import_names(
        source->described, count, source->paths[0], &source->arena, err);
    for (size_t i = 0; i < count; i++)
        source->entries[i].field = source->described[i].name;
    return code;
}

static void wd_close(void *state) {
    wd_source *source = (wd_source *)state;
    if (!source)
        return;
    wd_end_file(source);
    bags_buffer_free(&source->packed);
    bags_buffer_free(&source->block);
    bags_buffer_free(&source->data);
    bags_buffer_free(&source->name_buffer);
    bags_buffer_free(&source->key_buffer);
    bags_buffer_free(&source->fields_buffer);
    bags_import_arena arena = source->arena;
    bags_import_free(&arena);
}

static bool wd_accept(const char *name) {
    static const char *const endings[] = {".tar", ".tar.gz", ".tgz", ".tar.zst",
        ".tar.xz", ".tar.bz2", ".tar.lz4"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (bags_import_ends(name, endings[i]))
            return true;
    return false;
}

/* The first pass, after which the source is at its start again. */
static bags_code wd_scan(wd_source *source, bags_error *err) {
    bags_code code = bags_buffer_reserve(&source->block, WD_BLOCK, err);
    if (!code)
        code = bags_buffer_reserve(&source->packed, WD_BLOCK, err);
    if (!code)
        code = wd_advance(source, err);
    while (!code && source->pending) {
        code = wd_sample(source, WD_LEARN, err);
        source->not_utf8 =
            source->not_utf8 ||
            (!code && !bags_utf8_valid(source->key_buffer.data,
                          strlen((char *)source->key_buffer.data), NULL));
    }
    return code;
}

static bags_code wd_open(const char *path, const bags_allocator *allocator,
    void **out, bags_source_info *info, bags_error *err) {
    bags_error ignored;
    bags_import_arena arena = bags_import_arena_start(allocator);
    wd_source *source =
        (wd_source *)bags_import_alloc(&arena, 1, sizeof *source, err);
    err = err ? err : &ignored;
    if (!source)
        return BAGS_ERROR_MEMORY;
    source->arena = arena;
    source->packed = source->block = source->data = source->name_buffer =
        source->key_buffer = source->fields_buffer =
            bags_import_buffer_start(allocator);
    bags_code code = bags_import_files(path, wd_accept, &source->arena,
        &source->paths, &source->path_count, err);
    if (!code)
        code = wd_scan(source, err);
    if (!code)
        code = wd_make_fields(source, err);
    info->length = source->next;
    source->path = 0;
    source->next = 0;
    if (!code)
        code = wd_advance(source, err);
    if (code) {
        wd_close(source);
        return code;
    }
    info->fields = source->described;
    info->count = source->count + 1;
    *out = source;
    return BAGS_OK;
}

static bags_code wd_read(
    void *state, uint64_t index, const bags_entry **entries, bags_error *err) {
    wd_source *source = (wd_source *)state;
    bags_code code = BAGS_OK;
    bags_error ignored;
    err = err ? err : &ignored;
    *entries = NULL;
    while (!code && source->pending && source->next < index)
        code = wd_sample(source, WD_SKIP, err);
    if (code || !source->pending)
        return code;
    code = wd_sample(source, WD_TAKE, err);
    if (code)
        return code;
    const char *key = (const char *)source->key_buffer.data;
    source->key_value = bags_blob(key, strlen(key));
    source->entries[0].values = &source->key_value;
    source->entries[0].count = 1;
    for (size_t i = 0; i < source->count; i++) {
        wd_field *field = &source->fields[i];
        bags_entry *entry = &source->entries[i + 1];
        field->value =
            bags_blob(source->data.data + field->offset, field->value.size);
        entry->values = &field->value;
        entry->count = field->last == source->next;
        if (!field->sequence && entry->count == 0)
            return bags_fail(err, BAGS_ERROR_CORRUPT,
                "%s: sample \"%.200s\": has no %s: the file changed while it "
                "was read",
                source->paths[0], key, field->name);
    }
    *entries = source->entries;
    return BAGS_OK;
}

static bool wd_detect(const char *path) {
    char head[262];
    return bags_import_has_files(path, wd_accept) ||
           (bags_import_peek(path, head, sizeof head) == sizeof head &&
               memcmp(head + 257, "ustar", 5) == 0);
}

const bags_importer bags_import_webdataset = {
    "webdataset", wd_detect, wd_open, wd_read, wd_close};
