/*
 * Read the lines of a manifest. A pipe may deliver them slowly, so the caller states
 * how long it can wait until it must flush earlier lines. The manifest may be
 * compressed with gzip, recognized by its first bytes, and may start with a byte
 * order mark.
 *
 * Empty lines are allowed only at the end; elsewhere they indicate missing data.
 */
#include "command.h"
#include "system.h"

#ifdef COMMAND_WITH_ZLIB
#include <zlib.h>
#endif

/* A parsed line takes three times its size in memory. */
#define MAX_LINE ((size_t)1 << 28)
#define READ_SIZE ((size_t)1 << 16)

static const char *name;
static int file;
static bool ended;
static bags_buffer buffer;
static size_t start, scanned, stop; /* the bytes not yet split into lines */
static uint64_t last, blank;        /* line numbers; 0: none */
static uint64_t consumed, total;    /* in bytes */
static bool packed;                 /* the file is compressed */

const char *lines_path(void) { return name; }

uint64_t lines_number(void) { return last; }

void lines_progress(uint64_t *done, uint64_t *all) {
    *done = consumed;
    *all = total;
}

void lines_open(const char *path) {
    struct stat about;
    bool standard = !strcmp(path, "-");
    name = standard ? "standard input" : path;
    do
        file = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    while (file < 0 && errno == EINTR);
    if (file < 0)
        fail_system(errno, path, "open");
    if (fstat(file, &about))
        fail_system(errno, name, "stat");
    if (S_ISDIR(about.st_mode))
        fail(BAGS_ERROR_IO, "%s: cannot read: it is a directory", name);
    total = S_ISREG(about.st_mode) ? (uint64_t)about.st_size : 0;
}

/* Read some bytes of the file; none at the end. */
static size_t read_some(void *to) {
    ssize_t got;
    do
        got = read(file, to, READ_SIZE);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        fail_system(errno, name, "read");
    return (size_t)got;
}

#ifdef COMMAND_WITH_ZLIB
static z_stream unpacking;
static unsigned char input[READ_SIZE];

ENDS static void fail_unpacking(const char *what) {
    fail(BAGS_ERROR_CORRUPT, "%s: gzip: %s", name, what);
}

/* The buffer contains the first bytes of a compressed file. Prepare to unpack it. */
static void start_unpacking(void) {
    packed = true;
    unpacking.next_in = input;
    unpacking.avail_in = (uInt)(stop - start);
    memcpy(input, buffer.data + start, stop - start);
    consumed = stop - start;
    scanned = stop = start;
    if (inflateInit2(&unpacking, 15 + 16) != Z_OK)
        fail(BAGS_ERROR_MEMORY, "out of memory");
}

/* Unpack some bytes; none at the end of the file. The file may have several gzip
 * members. False if no input arrived in time. */
static bool unpack_some(int patience, unsigned char *to, size_t *got) {
    static bool between; /* between members, the only place where the file may end */
    *got = 0;
    while (*got == 0) {
        if (unpacking.avail_in == 0) {
            if (!wait_for_bytes(file, patience))
                return false;
            unpacking.next_in = input;
            unpacking.avail_in = (uInt)read_some(input);
            consumed += unpacking.avail_in;
        }
        if (unpacking.avail_in == 0 && !between)
            fail_unpacking("truncated");
        if (unpacking.avail_in == 0)
            return true;
        if (between && inflateReset(&unpacking) != Z_OK)
            fail_unpacking("cannot unpack");
        unpacking.next_out = to;
        unpacking.avail_out = (uInt)READ_SIZE;
        int code = inflate(&unpacking, Z_NO_FLUSH);
        between = code == Z_STREAM_END;
        if (code == Z_MEM_ERROR)
            fail(BAGS_ERROR_MEMORY, "out of memory");
        if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)
            fail_unpacking(unpacking.msg ? unpacking.msg : "damaged");
        *got = READ_SIZE - unpacking.avail_out;
    }
    return true;
}
#else
static void start_unpacking(void) {
    fail(BAGS_ERROR_TYPE,
        "%s: compressed by gzip, and zlib was not found when bags was built; "
        "decompress it first: `gzip -dc FILE | bags pack - OUT`",
        name);
}

static bool unpack_some(int patience, unsigned char *to, size_t *got) {
    (void)patience;
    (void)to;
    *got = 0;
    return true;
}
#endif

/* Append more bytes to the buffer. False if none arrived in time. */
static bool read_more(int patience) {
    static const unsigned char magic[] = {0x1F, 0x8B};
    static bool started;
    size_t got = 0;
    if (!packed && !wait_for_bytes(file, patience))
        return false;
    if (start > 0)
        memmove(buffer.data, buffer.data + start, stop - start);
    scanned -= start;
    stop -= start;
    start = 0;
    must(bags_buffer_reserve(&buffer, stop + READ_SIZE + 1, &failure));
    if (!packed)
        got = read_some(buffer.data + stop);
    else if (!unpack_some(patience, buffer.data + stop, &got))
        return false;
    ended = got == 0;
    stop += got;
    if (!started && stop == 1 && buffer.data[0] == magic[0])
        return true; /* the other byte is still to come */
    if (!started && stop >= 2 && !memcmp(buffer.data, magic, sizeof magic))
        start_unpacking();
    started = true;
    return true;
}

/* Get the next line. It may be empty. */
static line_state any_line(int patience, char **line, size_t *size) {
    unsigned char *end = NULL;
    for (;;) {
        if (stop > scanned)
            end = (unsigned char *)memchr(buffer.data + scanned, '\n', stop - scanned);
        scanned = stop;
        if (end || ended)
            break;
        if (stop - start > MAX_LINE)
            fail(BAGS_ERROR_LIMIT,
                "%s: line %ju: too long (maximum 256 MiB); store large values "
                "in files, as {\"file\": PATH}",
                name, (uintmax_t)last + 1);
        if (!read_more(patience))
            return LINE_LATER;
    }
    if (!end && start == stop)
        return LINE_END;
    *line = (char *)buffer.data + start;
    *size = (end ? (size_t)(end - buffer.data) : stop) - start;
    (*line)[*size] = 0;
    start += *size + (end != NULL);
    scanned = start;
    consumed += packed ? 0 : *size + 1;
    if (last++ == 0 && *size >= 3 && !memcmp(*line, "\xEF\xBB\xBF", 3)) {
        *line += 3;
        *size -= 3;
    }
    return LINE_READY;
}

line_state lines_next(int patience, char **line, size_t *size) {
    for (;;) {
        line_state state = any_line(patience, line, size);
        if (state != LINE_READY)
            return state;
        bool is_blank = strspn(*line, " \t\r") == *size;
        if (!is_blank && blank)
            fail(BAGS_ERROR_VALUE, "%s: line %ju: empty", name, (uintmax_t)blank);
        if (!is_blank)
            return LINE_READY;
        blank = blank ? blank : last;
    }
}
