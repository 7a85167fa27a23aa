/*
 * catalogue.c - writes the catalogue of a dataset: catalogue.h describes its bytes,
 * known.c reads it.
 */
#include "catalogue.h"
#include "files.h"
#include "storage.h"
#include "try.h"

typedef struct catalogue_maker {
    const bags_io *io;
    const char *path; /* of the dataset */
    const bags_reader *reader;
    const bags_field *fields;
    size_t count; /* of fields */
    char file[FORMAT_PATH];
    /* The shape of the last plain refs.bag that was computed, and its CRC. Shards are
     * usually equally long. */
    bool computed;
    uint64_t length;
    uint32_t crc;
} catalogue_maker;

/* Set `file` to the path of a file of a shard. */
static bags_code catalogue_path(catalogue_maker *m, const bags_shard *shard,
    const char *name, const char *ending, bags_error *err) {
    char directory[FORMAT_PATH];
    FORMAT_TRY(bags_shard_path(m->path, shard, directory, sizeof directory, err));
    return format_path(m->file, directory, name, ending, err);
}

/* Read `size` bytes of the open file at `offset` or, for UINT64_MAX, its last bytes. */
static bags_code catalogue_read(const catalogue_maker *m, void *file, uint64_t offset,
    unsigned char *out, size_t size, bags_error *err) {
    uint64_t all = 0;
    if (offset == UINT64_MAX) {
        int error = m->io->size(m->io->user, file, &all);
        FORMAT_TRY(bags_fail_io(m->io, error, m->file, "get the size of", err));
        if (all < size)
            return bags_fail(err, BAGS_ERROR_CORRUPT, "%s: truncated", m->file);
        offset = all - size;
    }
    return bags_read(m->io, file, m->file, offset, out, size, err);
}

/* Read a Bag's size and the offset of its table to `out`. */
static bags_code catalogue_measure_open(
    const catalogue_maker *m, void *file, unsigned char out[16], bags_error *err) {
    unsigned char number[8];
    uint64_t size = 0;
    int error = m->io->size(m->io->user, file, &size);
    FORMAT_TRY(bags_fail_io(m->io, error, m->file, "get the size of", err));
    if (size < 8)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: an empty file, as granular 0.20 writes it; no catalogue can describe "
            "it",
            m->file);
    FORMAT_TRY(catalogue_read(m, file, size - 8, number, 8, err));
    uint64_t table = catalogue_load(number, 8);
    if (table > size - 8 || (size - table) % 8 != 0)
        return bags_fail(err, BAGS_ERROR_CORRUPT,
            "%s: the last 8 bytes are not the offset of a table", m->file);
    FORMAT_TRY(catalogue_read(m, file, table, number, 8, err));
    if (catalogue_load(number, 8) != 0)
        return bags_fail(err, BAGS_ERROR_VALUE,
            "%s: a table without a leading 0, as granular 0.20 writes it; no catalogue "
            "can describe it",
            m->file);
    catalogue_store(out, size, 8);
    catalogue_store(out + 8, table, 8);
    return BAGS_OK;
}

static bags_code catalogue_open(catalogue_maker *m, void **file, bags_error *err) {
    int error = m->io->open(m->io->user, m->file, BAGS_IO_READ, file);
    return bags_fail_io(m->io, error, m->file, "open", err);
}

static bags_code catalogue_measure(catalogue_maker *m, const bags_shard *shard,
    const char *name, unsigned char out[16], bags_error *err) {
    void *file = NULL;
    FORMAT_TRY(catalogue_path(m, shard, name, ".bag", err));
    FORMAT_TRY(catalogue_open(m, &file, err));
    bags_code code = catalogue_measure_open(m, file, out, err);
    m->io->close(m->io->user, file);
    return code;
}

static bags_code catalogue_read_trailer(catalogue_maker *m, const bags_shard *shard,
    bags_trailer *trailer, bags_error *err) {
    unsigned char bytes[BAGS_TRAILER_SIZE];
    void *file = NULL;
    FORMAT_TRY(catalogue_path(m, shard, "refs", ".crc", err));
    FORMAT_TRY(catalogue_open(m, &file, err));
    bags_code code = catalogue_read(m, file, UINT64_MAX, bytes, sizeof bytes, err);
    m->io->close(m->io->user, file);
    FORMAT_TRY(code);
    return bags_trailer_load(bytes, sizeof bytes, trailer)
               ? BAGS_OK
               : bags_fail(err, BAGS_ERROR_CORRUPT, "%s: no valid trailer", m->file);
}

/* The CRC of the CRCs of a plain refs.bag. */
static uint32_t catalogue_plain_crc(catalogue_maker *m, uint64_t length) {
    unsigned char row[CATALOGUE_ROW], bytes[4];
    if (m->computed && m->length == length)
        return m->crc;
    m->computed = true;
    m->length = length;
    m->crc = 0;
    for (uint64_t i = 0; i < length; i++) {
        size_t size = catalogue_row(m->count, i, row);
        catalogue_store(bytes, bags_crc32c(0, row, size), 4);
        m->crc = bags_crc32c(m->crc, bytes, 4);
    }
    return m->crc;
}

/* True if refs.bag is plain: compares its size and the CRC of its CRCs. */
static bool catalogue_check_plain(
    catalogue_maker *m, const unsigned char *record, const bags_trailer *refs) {
    uint64_t length = refs->length;
    if (m->count == 0 || m->count > CATALOGUE_FIELDS || length >= (uint64_t)1 << 48 ||
        catalogue_load(record + 16 + 16 * m->count, 8) !=
            catalogue_row_start(m->count, length))
        return false;
    for (size_t i = 0; i < m->count; i++) {
        const unsigned char *bag = record + 8 + 16 * i;
        uint64_t blobs = (catalogue_load(bag, 8) - catalogue_load(bag + 8, 8)) / 8 - 1;
        if (blobs != length || bags_reader_type(m->reader, i)->sequence)
            return false;
    }
    return refs->crcs == catalogue_plain_crc(m, length);
}

/* Write the record of a shard. */
static bags_code catalogue_add(
    catalogue_maker *m, size_t index, unsigned char *record, bags_error *err) {
    size_t count = 0;
    const bags_shard *shard = &bags_reader_shards(m->reader, &count)[index];
    bags_trailer refs;
    if (shard->number != index || (shard->digits != 6 && index <= 999999))
        return bags_fail(err, BAGS_ERROR_GAP,
            "%s: the shards are not numbered 000000, 000001, ...; number them with "
            "bags_finalize",
            bags_path_tail(m->path));
    for (size_t i = 0; i <= m->count; i++)
        FORMAT_TRY(catalogue_measure(m, shard,
            i < m->count ? m->fields[i].name : "refs", record + 8 + 16 * i, err));
    FORMAT_TRY(catalogue_read_trailer(m, shard, &refs, err));
    const unsigned char *bag = record + 8 + 16 * m->count;
    uint64_t size = catalogue_load(bag, 8), table = catalogue_load(bag + 8, 8);
    if (refs.size != size || refs.length != (size - table) / 8 - 1 ||
        refs.length != shard->length || !refs.binds_shard)
        return bags_fail(err, BAGS_ERROR_CHANGED,
            "%s: changed while the catalogue was made", m->file);
    catalogue_store(record, refs.shard, 4);
    catalogue_store(
        record + 4, catalogue_check_plain(m, record, &refs) ? CATALOGUE_PLAIN : 0, 4);
    return bags_reader_check_shard(m->reader, index, err);
}

/* Read spec.json of the first shard to `out`, with the header and the names in front of
 * and after it. *size receives the number of bytes. */
static bags_code catalogue_begin(catalogue_maker *m, const bags_shard *shard,
    size_t records, bags_buffer *out, size_t *size, bags_error *err) {
    void *file = NULL;
    uint64_t spec = 0;
    size_t names = 0;
    for (size_t i = 0; i < m->count; i++)
        names += strlen(m->fields[i].name) + 1;
    FORMAT_TRY(catalogue_path(m, shard, "spec.json", "", err));
    FORMAT_TRY(catalogue_open(m, &file, err));
    int error = m->io->size(m->io->user, file, &spec);
    bags_code code = bags_fail_io(m->io, error, m->file, "get the size of", err);
    if (!code && spec > CATALOGUE_SPEC)
        code = bags_fail(err, BAGS_ERROR_LIMIT, "%s: too large", m->file);
    *size = CATALOGUE_HEAD + (size_t)spec + names + records;
    if (!code)
        code = bags_buffer_reserve(out, *size, err);
    if (!code)
        code =
            catalogue_read(m, file, 0, out->data + CATALOGUE_HEAD, (size_t)spec, err);
    m->io->close(m->io->user, file);
    FORMAT_TRY(code);
    memcpy(out->data, CATALOGUE_MAGIC, 8);
    catalogue_store(out->data + 12, spec, 4);
    catalogue_store(out->data + 24, m->count, 4);
    catalogue_store(out->data + 28, names, 4);
    unsigned char *at = out->data + CATALOGUE_HEAD + spec;
    for (size_t i = 0; i < m->count; i++) {
        size_t length = strlen(m->fields[i].name) + 1;
        memcpy(at, m->fields[i].name, length);
        at += length;
    }
    return BAGS_OK;
}

static bags_code catalogue_make(
    catalogue_maker *m, bags_buffer *out, size_t *size, bags_error *err) {
    size_t shards = 0;
    const bags_shard *list = bags_reader_shards(m->reader, &shards);
    size_t record = 8 + 16 * (m->count + 1);
    if (shards == 0 || list->digits == 0)
        return bags_fail(err, BAGS_ERROR_MISSING,
            "%s: no shards; only a sharded dataset has a catalogue",
            bags_path_tail(m->path));
    if (shards > CATALOGUE_SHARDS || shards > CATALOGUE_RECORDS / record)
        return bags_fail(err, BAGS_ERROR_LIMIT,
            "%s: too many shards and fields for a catalogue (at most %d shards, and "
            "512 MiB)",
            bags_path_tail(m->path), CATALOGUE_SHARDS);
    FORMAT_TRY(catalogue_begin(m, list, shards * record, out, size, err));
    catalogue_store(out->data + 16, shards, 8);
    unsigned char *records = out->data + *size - shards * record;
    for (size_t i = 0; i < shards; i++)
        FORMAT_TRY(catalogue_add(m, i, records + i * record, err));
    catalogue_store(out->data + 8, bags_crc32c(0, out->data + 12, *size - 12), 4);
    return BAGS_OK;
}

bags_code bags_catalogue_make(const char *path, const bags_env *env, bags_buffer *out,
    size_t *size, bags_error *err) {
    catalogue_maker m;
    bags_reader_options options;
    bags_error ignored;
    err = err ? err : &ignored;
    memset(&m, 0, sizeof m);
    memset(&options, 0, sizeof options);
    if (env)
        options.env = *env;
    options.verify_checksums = true; /* the checksums of a shard belong together */
    bags_reader *reader = bags_reader_open(path, &options, err);
    if (!reader)
        return err->code;
    m.io = options.env.io ? options.env.io : bags_io_local();
    m.path = path;
    m.reader = reader;
    m.fields = bags_reader_fields(reader, &m.count);
    bags_code code = catalogue_make(&m, out, size, err);
    bags_reader_close(reader);
    return code;
}

/* Write the bytes to an open file. */
static int catalogue_write(const bags_io *io, void *file, const bags_buffer *bytes,
    size_t size, bool no_sync) {
    int error = io->truncate(io->user, file, 0);
    if (!error)
        error = format_write_all(io, file, 0, bytes->data, size);
    return error || no_sync ? error : io->sync(io->user, file);
}

/* Write the file under another name, and rename it when it is complete. */
static bags_code catalogue_publish(const char *partial, const char *to,
    const bags_io *io, const bags_buffer *bytes, size_t size, bool no_sync,
    bags_error *err) {
    void *file = NULL;
    FORMAT_TRY(format_open_locked(io, partial, to, "bags_catalogue", &file, err));
    int error = catalogue_write(io, file, bytes, size, no_sync);
    int closed = io->close(io->user, file);
    bags_code code = bags_fail_io(io, error ? error : closed, partial, "write", err);
    if (!code)
        code =
            bags_fail_io(io, io->rename(io->user, partial, to), partial, "rename", err);
    if (code)
        (void)io->remove(io->user, partial);
    return code;
}

static bags_code catalogue_save(const char *path, const bags_io *io,
    const bags_buffer *bytes, size_t size, bool no_sync, bags_error *err) {
    char to[FORMAT_PATH], partial[FORMAT_PATH];
    FORMAT_TRY(format_path(to, path, CATALOGUE_NAME, "", err));
    FORMAT_TRY(format_path(partial, path, CATALOGUE_NAME, ".partial", err));
    return catalogue_publish(partial, to, io, bytes, size, no_sync, err);
}

static bags_code catalogue_sync(const char *path, const bags_io *io, bags_error *err) {
    char directory[FORMAT_PATH];
    FORMAT_TRY(format_path(directory, path, "000000", "", err));
    return bags_fail_io(io, io->sync_dir(io->user, directory), directory, "sync", err);
}

bags_code bags_catalogue(
    const char *path, const bags_catalogue_options *options, bags_error *err) {
    bags_catalogue_options none;
    size_t size = 0;
    memset(&none, 0, sizeof none);
    options = options ? options : &none;
    const bags_io *io = options->env.io ? options->env.io : bags_io_local();
    bags_buffer bytes = bags_buffer_of(options->env.allocator);
    if (!path || !*path)
        return bags_fail(err, BAGS_ERROR_ARGUMENT, "the path is empty");
    bags_code code = bags_catalogue_make(path, &options->env, &bytes, &size, err);
    if (!code)
        code = catalogue_save(path, io, &bytes, size, options->no_sync, err);
    if (!code && !options->no_sync)
        code = catalogue_sync(path, io, err);
    bags_buffer_free(&bytes);
    return code;
}
