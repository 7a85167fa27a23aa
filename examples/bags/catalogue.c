/*
 * bags catalogue: write a file that describes the files of all shards.
 */
#include "command.h"

#include "files.h"
#include "storage.h"

#include <errno.h>

/* Hooks that read one file: bytes in memory. */
static int memory_open(void *user, const char *path, int mode, void **file) {
    (void)path;
    *file = user;
    return mode == BAGS_IO_READ ? 0 : EROFS;
}

static int memory_close(void *user, void *file) {
    (void)user;
    (void)file;
    return 0;
}

static int memory_size(void *user, void *file, uint64_t *size) {
    (void)user;
    *size = ((bags_view *)file)->size;
    return 0;
}

static int memory_read(
    void *user, void *file, uint64_t offset, void *data, size_t size, size_t *done) {
    const bags_view *bytes = (bags_view *)file;
    (void)user;
    *done = offset < bytes->size ? bytes->size - (size_t)offset : 0;
    *done = *done < size ? *done : size;
    memcpy(data, bytes->data + offset, *done);
    return 0;
}

/* True if the file at this path has these bytes. */
static bool has_bytes(const char *path, bags_view bytes) {
    bags_buffer found = {0};
    bags_view view = {NULL, 0};
    bags_error ignored;
    bags_code code = format_read_file(
        io_for_path(path), path, bytes.size, BAGS_ERROR_LIMIT, &found, &view, &ignored);
    bool same = !code && view.size == bytes.size &&
                memcmp(view.data, bytes.data, bytes.size) == 0;
    bags_buffer_free(&found);
    return same;
}

/* Upload the catalogue of the dataset `from`, of which `to` is a copy, unless it is
 * there. */
static bags_code upload(const char *from, const char *to) {
    bags_env env = {NULL, io_for_path(from)};
    bags_buffer made = {0};
    bags_io io = {0};
    bags_view bytes = {NULL, 0};
    bags_code code = bags_catalogue_make(from, &env, &made, &bytes.size, &failure);
    bytes.data = made.data;
    io.user = &bytes;
    io.open = memory_open;
    io.close = memory_close;
    io.size = memory_size;
    io.read_at = memory_read;
    const char *path = temp_format("%s/000000/catalogue", to);
    if (!code && !has_bytes(path, bytes))
        code = object_upload(path, &io, path, NULL, NULL, &failure);
    bags_buffer_free(&made);
    return code;
}

void catalogue_add(const char *from, const char *to) {
    bags_catalogue_options options = {0};
    bags_code code =
        path_is_remote(to) ? upload(from, to) : bags_catalogue(to, &options, &failure);
    if (!code || code == BAGS_ERROR_MISSING || code == BAGS_ERROR_GAP ||
        code == BAGS_ERROR_VALUE)
        return;
    failure_prefix("no catalogue: ");
    die();
}

static int run(char **operands) {
    path_must_be_writable(operands[0]);
    bags_code code = bags_catalogue(operands[0], NULL, &failure);
    if (code)
        path_hint(operands[0]);
    must(code);
    print("%s: wrote 000000/catalogue\n", operands[0]);
    return 0;
}

const command command_catalogue = {"catalogue",
    "describe all shards in one file, for servers", "PATH", {ARGUMENT_LOCAL}, 1, 1,
    NULL, NULL,
    "Writes 000000/catalogue: the sizes of the Bags of every shard, and the checksum "
    "that binds the shard together. From a URL, a dataset with a catalogue opens in at "
    "most three round trips, with any number of shards. Other readers ignore the file. "
    "The dataset must be finished, sharded without gaps, and have checksums. `bags "
    "finalize` and `bags copy` also write the catalogue of such a dataset. Commands "
    "that "
    "add or renumber shards remove it. A catalogue that does not match the dataset is "
    "ignored, or is an error that names it.\n",
    "  bags catalogue pets\n", run};
