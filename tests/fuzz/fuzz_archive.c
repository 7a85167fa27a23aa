/*
 * Any bytes as a zip or tar file: open it with and without maps, walk through its
 * tree, and read every member, whose bytes must be the same in both ways, and no
 * others' as well.
 */
// flavours: test: asan
#include "support.h"

#include "../../formats/formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* One walk. */
typedef struct walk {
    const bags_io *io;
    const char *directory;
    uint64_t sum;   /* of everything that was seen */
    uint64_t bytes; /* of all members */
    int depth;
} walk;

static void demand(bool holds) {
    if (!holds)
        abort();
}

static void read_member(walk *w, const char *path) {
    const bags_io *io = w->io;
    void *file = NULL;
    const void *map = NULL;
    uint64_t size = 0;
    int error = io->open(io->user, path, BAGS_IO_READ, &file);
    w->sum = w->sum * 31 + (uint64_t)(error != 0);
    if (error)
        return;
    demand(io->size(io->user, file, &size) == 0);
    demand(size < 1 << 24);
    unsigned char *read = (unsigned char *)malloc((size_t)size + 1);
    size_t total = 0, done;
    do {
        done = 0;
        demand(io->read_at(io->user, file, total, read + total,
                   (size_t)size + 1 - total, &done) == 0);
        total += done;
    } while (done);
    demand(total == size);
    if (io->map && size && io->map(io->user, file, (size_t)size, &map) == 0) {
        demand(memcmp(map, read, total) == 0);
        io->unmap(io->user, map, (size_t)size);
    }
    for (size_t i = 0; i < total; i++)
        w->sum = w->sum * 31 + read[i];
    w->bytes += size;
    free(read);
    io->close(io->user, file);
}

static int visit(void *user, const char *name) {
    walk *w = (walk *)user, inner = *w;
    bags_path_kind kind = BAGS_PATH_NONE;
    char path[4096];
    demand(*name && !strchr(name, '/') && strcmp(name, "..") != 0);
    if (snprintf(path, sizeof path, "%s/%s", w->directory, name) >= (int)sizeof path ||
        w->depth > 50)
        return 1;
    for (const char *c = name; *c; c++)
        w->sum = w->sum * 31 + (unsigned char)*c;
    demand(w->io->kind(w->io->user, path, &kind) == 0);
    demand(kind != BAGS_PATH_NONE);
    if (kind == BAGS_PATH_FILE) {
        read_member(w, path);
        return 0;
    }
    inner.directory = path;
    inner.depth++;
    int error = w->io->list(w->io->user, path, visit, &inner);
    demand(error == 0 || error == 1);
    w->sum = inner.sum;
    w->bytes = inner.bytes;
    return error;
}

/* Returns true if it is an archive. */
static bool look(const bags_io *io, size_t size, uint64_t *sum) {
    bags_archive_options options;
    bags_reader_options reading;
    bags_error err;
    walk w;
    memset(&options, 0, sizeof options);
    memset(&reading, 0, sizeof reading);
    memset(&w, 0, sizeof w);
    options.env.io = io;
    bags_archive *archive = bags_archive_open("a", &options, &err);
    if (!archive) {
        demand(err.code && err.message[0]);
        return false;
    }
    w.io = bags_archive_io(archive);
    w.directory = "a";
    w.io->list(w.io->user, "a", visit, &w);
    demand(w.bytes <= size);
    *sum = w.sum;
    reading.env.io = w.io;
    bags_reader *reader = bags_reader_open("a", &reading, &err);
    bags_row row = {0};
    for (uint64_t i = 0; reader && i < 3 && i < bags_reader_length(reader); i++)
        bags_reader_get(reader, i, NULL, 0, &row, &err);
    bags_row_free(&row);
    bags_reader_close(reader);
    bags_archive_close(archive);
    return true;
}

/* Correct the checksums of a tar's headers, which changes seldom leave valid. */
static void mend(uint8_t *data, size_t size) {
    for (size_t at = 0; at + 512 <= size; at += 512) {
        unsigned sum = 8 * ' ';
        if (memcmp(data + at + 257, "ustar", 5) != 0)
            continue;
        for (size_t i = 0; i < 512; i++)
            sum += i >= 148 && i < 156 ? 0u : data[at + i];
        snprintf((char *)data + at + 148, 8, "%06o", sum);
    }
}

static void try_bytes(const uint8_t *data, size_t size) {
    memory_disk drive;
    uint64_t near = 0, far = 0;
    memory_disk_start(&drive);
    memory_disk_save(&drive, "a", data, size);
    bags_io remote = drive.io;
    remote.map = NULL;
    bool is_archive = look(&drive.io, size, &near);
    bool is_remote = look(&remote, size, &far);
    /* Without maps, the headers of members are checked later. */
    demand(!is_archive || (is_remote && near == far));
    memory_disk_free(&drive);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *copy = (uint8_t *)malloc(size + 1);
    if (size > 0)
        memcpy(copy, data, size);
    mend(copy, size);
    try_bytes(copy, size);
    free(copy);
    return 0;
}
