/*
 * zip.c - writes a dataset as a zip file. No library.
 *
 *     header | bytes | header | bytes | ... | directory | end
 *
 * Nothing is compressed, so archive.c and every other zip reader see the dataset's
 * bytes unchanged. An extra field in each Bag's local header pads it to the next
 * multiple of 4,096. The header precedes the bytes but contains their CRC-32, so it is
 * written after them. Numbers above 32 bits go into zip64 fields, written only if
 * needed. All times are 1980-01-01.
 */
#include "blocks.h"
#include "files.h"
#include "publish.h"
#include "storage.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZIP_PAGE 4096
/* Writes end at multiples of this size, so that the system can map huge pages. */
#define ZIP_PART ((size_t)2 << 20)
#define ZIP_SMALL ((uint64_t)64 << 10) /* smaller files are placed near the end */
#define ZIP_NAME_MOST 0xFFFF
#define ZIP_LOCAL_SIZE 30
#define ZIP_EXTRA_MOST (20 + 6 + ZIP_PAGE) /* zip64 and padding */
#define ZIP_UTF8_NAME 0x0800               /* flag: the name is UTF-8 */
#define ZIP_DATE 0x0021                    /* 1980-01-01 */
#define ZIP_ALIGNMENT_ID 0xD935            /* of the extra field used as padding */

typedef struct zip_member {
    size_t name;         /* offset in zip_writer.names; the name is relative to the
                            dataset */
    size_t shard, order; /* its index among the shards, and among the members */
    uint64_t size, offset;
    bags_identity identity;
    uint32_t crc;
    bool last; /* spec.json */
} zip_member;

typedef struct zip_writer {
    bags_buffer memory; /* see format_state */
    const char *dataset, *path;
    bags_zip_options options;
    const bags_io *from, *io; /* hooks for the dataset, and for the zip file */
    bags_buffer tables, part, names, members_memory;
    bags_buffer partial; /* path of the temporary file */
    char from_path[FORMAT_PATH];
    zip_member *members;
    size_t names_size, length;
    void *file;
    uint64_t at; /* bytes written */
    uint64_t done, total;
    uint32_t (*table)[256]; /* eight CRC-32 tables */
    bags_error *err;
} zip_writer;

/* ---- bytes ---- */

static bags_code zip_start_crc(zip_writer *z) {
    if (bags_buffer_reserve(&z->tables, 8 * sizeof *z->table, z->err))
        return BAGS_ERROR_MEMORY;
    z->table = (uint32_t(*)[256])(void *)z->tables.data;
    format_crc_tables(z->table);
    return BAGS_OK;
}

/* Append a number to a record as `size` little-endian bytes. */
static unsigned char *zip_put(unsigned char *to, uint64_t number, size_t size) {
    bags_store_bytes(to, size, false, number);
    return to + size;
}

/* The lower 32 bits, or all ones if the number is in a zip64 field. */
static uint32_t zip_narrow(uint64_t number) {
    return number < UINT32_MAX ? (uint32_t)number : UINT32_MAX;
}

static bags_code zip_write(
    zip_writer *z, uint64_t at, const unsigned char *data, size_t size) {
    return bags_fail_io(z->io, format_write_all(z->io, z->file, at, data, size),
        z->path, "write", z->err);
}

static bags_code zip_append(zip_writer *z, const unsigned char *data, size_t size) {
    bags_code code = zip_write(z, z->at, data, size);
    z->at += size;
    return code;
}

/* ---- the members ---- */

static const char *zip_name(const zip_writer *z, const zip_member *m) {
    return (const char *)z->names.data + m->name;
}

/* Set from_path to a member's path in the dataset. */
static bags_code zip_find(zip_writer *z, const char *name) {
    return format_path(z->from_path, z->dataset, name, "", z->err);
}

/* Add a file of the dataset, if it exists. */
static bags_code zip_add_file(zip_writer *z, size_t shard, const char *file_name) {
    bags_path_kind kind = BAGS_PATH_NONE;
    zip_member member;
    size_t size = strlen(file_name) + 1;
    memset(&member, 0, sizeof member);
    member.shard = shard;
    member.order = z->length;
    member.name = z->names_size;
    member.last = format_ends(file_name, size - 1, "spec.json");
    if (bags_buffer_reserve(&z->names, z->names_size + size, z->err) ||
        bags_buffer_reserve(
            &z->members_memory, (z->length + 1) * sizeof member, z->err))
        return BAGS_ERROR_MEMORY;
    z->members = (zip_member *)(void *)z->members_memory.data;
    memcpy(z->names.data + z->names_size, file_name, size);
    const char *name = zip_name(z, &member), *path = z->from_path;
    FORMAT_TRY(zip_find(z, name));
    int error = z->from->kind(z->from->user, path, &kind);
    FORMAT_TRY(bags_fail_io(z->from, error, path, "open", z->err));
    if (kind != BAGS_PATH_FILE)
        return BAGS_OK;
    FORMAT_TRY(format_measure(z->from, path, &member.size, &member.identity, z->err));
    if (strlen(name) > ZIP_NAME_MOST)
        return bags_fail(
            z->err, BAGS_ERROR_LIMIT, "%s: the name is too long for a zip file", path);
    z->members[z->length++] = member;
    z->names_size += strlen(name) + 1;
    z->total += member.size;
    return BAGS_OK;
}

/* Large files, then small ones, then spec.json; by shard within each. */
static int zip_order(const void *x, const void *y) {
    const zip_member *a = (const zip_member *)x, *b = (const zip_member *)y;
    if (a->last != b->last)
        return a->last ? 1 : -1;
    if ((a->size < ZIP_SMALL) != (b->size < ZIP_SMALL))
        return a->size < ZIP_SMALL ? 1 : -1;
    if (a->shard != b->shard)
        return a->shard < b->shard ? -1 : 1;
    if (a->size != b->size)
        return a->size > b->size ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

/* Opening the Bags after finding them ensures that they and the reader's fields are
 * from one version. */
static bags_code zip_collect_from(
    zip_writer *z, const bags_reader *reader, const bags_env *env) {
    bags_info about;
    size_t count = 0;
    char name[600];
    bags_reader_shards(reader, &count);
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; format_file_name(reader, i, &k, name);)
            FORMAT_TRY(zip_add_file(z, i, name));
    for (size_t i = 0; i < z->options.files_count; i++)
        FORMAT_TRY(zip_add_file(z, count, z->options.files[i]));
    FORMAT_TRY(bags_reader_info(reader, &about, NULL, z->err));
    return z->options.whole ? BAGS_OK : format_check_referenced(reader, env, z->err);
}

/* Find the files of the complete dataset. */
static bags_code zip_collect(zip_writer *z) {
    bags_reader_options options;
    memset(&options, 0, sizeof options);
    options.env = z->options.env;
    options.env.io = z->from;
    bags_reader *reader = bags_reader_open(z->dataset, &options, z->err);
    if (!reader)
        return z->err->code;
    bags_code code = zip_collect_from(z, reader, &options.env);
    bags_reader_close(reader);
    if (!code)
        qsort(z->members, z->length, sizeof *z->members, zip_order);
    return code;
}

/* ---- writing ---- */

/* Write a member's header at its offset. `extra` bytes of extra fields pad it up to the
 * data. */
static bags_code zip_write_header(zip_writer *z, const zip_member *m, size_t extra) {
    unsigned char record[ZIP_LOCAL_SIZE + ZIP_EXTRA_MOST], *to = record;
    size_t name_size = strlen(zip_name(z, m));
    bool wide = m->size >= UINT32_MAX;
    to = zip_put(to, 0x04034B50, 4);
    to = zip_put(to, wide ? 45 : 20, 2);
    to = zip_put(to, ZIP_UTF8_NAME, 2);
    to = zip_put(to, (uint64_t)ZIP_DATE << 32, 6); /* method 0, time 0 */
    to = zip_put(to, m->crc, 4);
    to = zip_put(to, zip_narrow(m->size), 4);
    to = zip_put(to, zip_narrow(m->size), 4);
    to = zip_put(to, name_size, 2);
    zip_put(to, extra, 2);
    FORMAT_TRY(zip_write(z, m->offset, record, ZIP_LOCAL_SIZE));
    FORMAT_TRY(zip_write(z, m->offset + ZIP_LOCAL_SIZE,
        (const unsigned char *)zip_name(z, m), name_size));
    memset(record, 0, sizeof record);
    to = record;
    if (wide) {
        to = zip_put(to, 1, 2);
        to = zip_put(to, 16, 2);
        to = zip_put(to, m->size, 8);
        to = zip_put(to, m->size, 8);
    }
    if (extra > (size_t)(to - record)) {
        size_t filling = extra - (size_t)(to - record);
        to = zip_put(to, ZIP_ALIGNMENT_ID, 2);
        to = zip_put(to, filling - 4, 2);
        zip_put(to, ZIP_PAGE, 2);
    }
    return zip_write(z, m->offset + ZIP_LOCAL_SIZE + name_size, record, extra);
}

/* Copy an open file's bytes. Fail if the file has changed by the end. */
static bags_code zip_copy_file(zip_writer *z, zip_member *m, void *file) {
    const char *path = z->from_path;
    uint64_t read = 0;
    uint32_t crc = UINT32_MAX;
    for (size_t done = 1; done > 0 && read <= m->size; read += done) {
        done = 0;
        size_t part = ZIP_PART - (size_t)(z->at % ZIP_PART);
        int error =
            z->from->read_at(z->from->user, file, read, z->part.data, part, &done);
        FORMAT_TRY(bags_fail_io(z->from, error, path, "read", z->err));
        crc = format_crc_add(z->table, crc, z->part.data, done);
        FORMAT_TRY(zip_append(z, z->part.data, done));
        z->done += done;
        if (z->options.progress && done > 0)
            z->options.progress(z->options.user, z->done, z->total);
    }
    m->crc = ~crc;
    if (read == m->size)
        return format_check_identity(z->from, file, path, &m->identity, z->err);
    return bags_fail(z->err, BAGS_ERROR_CORRUPT,
        "%s: changed while it was read (%" PRIu64 "%s bytes, was %" PRIu64 ")", path,
        read, read > m->size ? " or more" : "", m->size);
}

static bags_code zip_copy(zip_writer *z, zip_member *m) {
    void *file = NULL;
    FORMAT_TRY(zip_find(z, zip_name(z, m)));
    int error = z->from->open(z->from->user, z->from_path, BAGS_IO_READ, &file);
    FORMAT_TRY(bags_fail_io(z->from, error, z->from_path, "open", z->err));
    bags_code code = zip_copy_file(z, m, file);
    z->from->close(z->from->user, file);
    return code;
}

static bags_code zip_write_member(zip_writer *z, zip_member *m) {
    size_t name_size = strlen(zip_name(z, m));
    size_t extra = m->size >= UINT32_MAX ? 20 : 0;
    m->offset = z->at;
    uint64_t start = z->at + ZIP_LOCAL_SIZE + name_size + extra;
    if (format_ends(zip_name(z, m), name_size, ".bag") && start % ZIP_PAGE) {
        size_t filling = ZIP_PAGE - (size_t)(start % ZIP_PAGE);
        extra += filling < 6 ? filling + ZIP_PAGE : filling;
    }
    z->at += ZIP_LOCAL_SIZE + name_size + extra;
    FORMAT_TRY(zip_copy(z, m));
    return zip_write_header(z, m, extra);
}

/* Write a directory entry. */
static bags_code zip_write_entry(zip_writer *z, const zip_member *m) {
    unsigned char record[46], wide[4 + 24], *to = record;
    unsigned char *more = wide + 4;
    size_t name_size = strlen(zip_name(z, m));
    if (m->size >= UINT32_MAX) {
        more = zip_put(more, m->size, 8);
        more = zip_put(more, m->size, 8);
    }
    if (m->offset >= UINT32_MAX)
        more = zip_put(more, m->offset, 8);
    size_t extra = (size_t)(more - wide) - 4;
    zip_put(zip_put(wide, 1, 2), extra, 2);
    extra += extra ? 4 : 0;
    to = zip_put(to, 0x02014B50, 4);
    to = zip_put(to, 3 << 8 | (extra ? 45 : 20), 2); /* made on a POSIX system */
    to = zip_put(to, extra ? 45 : 20, 2);
    to = zip_put(to, ZIP_UTF8_NAME, 2);
    to = zip_put(to, (uint64_t)ZIP_DATE << 32, 6);
    to = zip_put(to, m->crc, 4);
    to = zip_put(to, zip_narrow(m->size), 4);
    to = zip_put(to, zip_narrow(m->size), 4);
    to = zip_put(to, name_size, 2);
    to = zip_put(to, extra, 2);
    to = zip_put(to, 0, 6);
    to = zip_put(to, (uint64_t)0100644 << 16, 4); /* anyone may read it */
    zip_put(to, zip_narrow(m->offset), 4);
    FORMAT_TRY(zip_append(z, record, sizeof record));
    FORMAT_TRY(zip_append(z, (const unsigned char *)zip_name(z, m), name_size));
    return zip_append(z, wide, extra);
}

static bags_code zip_write_end(zip_writer *z, uint64_t start) {
    unsigned char record[56 + 20 + 22], *to = record;
    uint64_t at = z->at, size = z->at - start, length = z->length;
    if (length >= 0xFFFF || start >= UINT32_MAX || size >= UINT32_MAX) {
        to = zip_put(to, 0x06064B50, 4);
        to = zip_put(to, 44, 8);
        to = zip_put(to, 3 << 8 | 45, 2);
        to = zip_put(to, 45, 2);
        to = zip_put(to, 0, 8);
        to = zip_put(to, length, 8);
        to = zip_put(to, length, 8);
        to = zip_put(to, size, 8);
        to = zip_put(to, start, 8);
        to = zip_put(to, 0x07064B50, 4);
        to = zip_put(to, 0, 4);
        to = zip_put(to, at, 8);
        to = zip_put(to, 1, 4);
    }
    length = length < 0xFFFF ? length : 0xFFFF;
    to = zip_put(to, 0x06054B50, 4);
    to = zip_put(to, 0, 4);
    to = zip_put(to, length, 2);
    to = zip_put(to, length, 2);
    to = zip_put(to, zip_narrow(size), 4);
    to = zip_put(to, zip_narrow(start), 4);
    to = zip_put(to, 0, 2);
    return zip_append(z, record, (size_t)(to - record));
}

static bags_code zip_write_all(zip_writer *z) {
    FORMAT_TRY(bags_buffer_reserve(&z->part, ZIP_PART, z->err));
    for (size_t i = 0; i < z->length; i++)
        FORMAT_TRY(zip_write_member(z, &z->members[i]));
    uint64_t start = z->at;
    for (size_t i = 0; i < z->length; i++)
        FORMAT_TRY(zip_write_entry(z, &z->members[i]));
    return zip_write_end(z, start);
}

/* Fail if the dataset has changed since it was copied. */
static bags_code zip_check_all(zip_writer *z) {
    for (size_t i = 0; z->from->expect && i < z->length; i++) {
        FORMAT_TRY(zip_find(z, zip_name(z, &z->members[i])));
        z->from->expect(z->from->user, z->from_path);
    }
    for (size_t i = 0; z->from->identify && i < z->length; i++) {
        FORMAT_TRY(zip_find(z, zip_name(z, &z->members[i])));
        FORMAT_TRY(format_check_identity(
            z->from, NULL, z->from_path, &z->members[i].identity, z->err));
    }
    return BAGS_OK;
}

/* Fail if something already has the zip file's name. */
static bags_code zip_check_target(zip_writer *z) {
    bags_path_kind kind = BAGS_PATH_NONE;
    int error = z->io->kind(z->io->user, z->path, &kind);
    if (!error && kind != BAGS_PATH_NONE)
        return bags_fail(z->err, BAGS_ERROR_EXISTS,
            "%s: already exists; remove it, or write to a new path", z->path);
    return bags_fail_io(z->io, error, z->path, "create", z->err);
}

/* Create the temporary file and lock it, or reuse the file of a killed process. */
static bags_code zip_create(zip_writer *z, const char *partial) {
    FORMAT_TRY(format_open_locked(
        z->io, partial, z->path, "process that writes it", &z->file, z->err));
    int error = z->io->truncate(z->io->user, z->file, 0);
    if (error)
        z->io->close(z->io->user, z->file);
    return bags_fail_io(z->io, error, partial, "lock", z->err);
}

/* Wait until the new name is on stable storage. */
static bags_code zip_sync_parent(zip_writer *z, char *path) {
    size_t size = strlen(path);
    while (size > 0 && path[size - 1] != '/')
        size--;
    path[size] = 0;
    int error = z->io->sync_dir(z->io->user, size ? path : ".");
    return bags_fail_io(z->io, error, size ? path : ".", "sync", z->err);
}

/* Write the temporary file, and check that nothing has changed meanwhile. */
static bags_code zip_write_checked(zip_writer *z) {
    if (z->options.progress)
        z->options.progress(z->options.user, 0, z->total);
    FORMAT_TRY(zip_write_all(z));
    int error = z->options.no_sync ? 0 : z->io->sync(z->io->user, z->file);
    FORMAT_TRY(bags_fail_io(z->io, error, z->path, "sync", z->err));
    FORMAT_TRY(zip_check_all(z));
    return zip_check_target(z);
}

/* The temporary file stays locked until it is renamed or removed. */
static bags_code zip_create_and_write(zip_writer *z, char *partial) {
    FORMAT_TRY(zip_create(z, partial));
    bags_code code = zip_write_checked(z);
    int error = code ? 0 : z->io->rename(z->io->user, partial, z->path);
    if (error)
        code = bags_fail_io(z->io, error, z->path, "create", z->err);
    if (code)
        z->io->remove(z->io->user, partial);
    error = z->io->close(z->io->user, z->file);
    FORMAT_TRY(code);
    if (error) {
        z->io->remove(z->io->user, z->path);
        return bags_fail_io(z->io, error, z->path, "close", z->err);
    }
    return z->options.no_sync ? BAGS_OK : zip_sync_parent(z, partial);
}

static bags_code zip_run(zip_writer *z) {
    size_t size = strlen(z->path) + 16;
    FORMAT_TRY(zip_check_target(z));
    FORMAT_TRY(zip_start_crc(z));
    FORMAT_TRY(zip_collect(z));
    FORMAT_TRY(bags_buffer_reserve(&z->partial, size, z->err));
    char *partial = (char *)z->partial.data;
    (void)snprintf(partial, size, "%s.partial", z->path);
    return zip_create_and_write(z, partial);
}

bags_code bags_zip(const char *dataset, const char *path,
    const bags_zip_options *options, bags_error *err) {
    bags_error ignored = {BAGS_OK, 0, "", 0};
    err = err ? err : &ignored;
    if (!dataset || !*dataset || !path || !*path)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "the path is empty");
    zip_writer *z = (zip_writer *)format_state(
        options ? options->env.allocator : NULL, sizeof *z, err);
    if (!z)
        return BAGS_ERROR_MEMORY;
    if (options)
        z->options = *options;
    z->dataset = dataset;
    z->path = path;
    z->err = err;
    z->io = z->options.env.io ? z->options.env.io : bags_io_local();
    z->from = z->options.from ? z->options.from : z->io;
    z->tables = z->part = z->names = z->members_memory = z->partial =
        bags_buffer_of(z->options.env.allocator);
    bags_code code = zip_run(z);
    bags_buffer_free(&z->partial);
    bags_buffer_free(&z->members_memory);
    bags_buffer_free(&z->names);
    bags_buffer_free(&z->tables);
    bags_buffer_free(&z->part);
    format_state_close(z);
    return code;
}
